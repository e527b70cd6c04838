"""A schema is fetched once, by one of many threads; "unknown" does not stay; a fork shares nothing."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import SchemaNotFoundError, SchemaRegistryError
from headrace.formats import SchemaRegistry
from headrace.formats._subjects import SubjectSchemas
from headrace.formats.registry import cache as cache_module
from headrace.formats.registry import http as http_module
from headrace.formats.registry.cache import SchemaCache
from support.formats.scripted_server import Request, Response, response, scripted_server

UNKNOWN = response({"error_code": 40403, "message": "Schema not found"}, 404)


def by_target(request: Request) -> Response:
    return response({"schema": request.target})


def test_a_schema_is_fetched_once_even_if_many_threads_ask() -> None:
    asked, answer = threading.Event(), threading.Event()

    def script(request: Request) -> Response:
        asked.set()
        assert answer.wait(30)
        return by_target(request)

    with scripted_server(script) as server, ThreadPoolExecutor(16) as threads:
        registry = SchemaRegistry(server.url)
        waiting = [threads.submit(registry.schema, 7) for _ in range(16)]
        assert asked.wait(30)
        answer.set()
        assert {future.result(30).text for future in waiting} == {"/schemas/ids/7"}
        assert registry.schema(7).id == 7
        assert len(server.requests) == 1


def test_threads_that_wait_get_the_error_of_the_one_that_asked() -> None:
    asked, answer = threading.Event(), threading.Event()

    def script(_request: Request) -> Response:
        asked.set()
        assert answer.wait(30)
        return response({"message": "no"}, 403)

    with scripted_server(script) as server, ThreadPoolExecutor(4) as threads:
        registry = SchemaRegistry(server.url)
        first = threads.submit(registry.schema, 7)
        assert asked.wait(30)
        others = [threads.submit(registry.schema, 7) for _ in range(3)]
        while sum(fetch.done._cond._waiters.__len__() for fetch in registry._cache._fetches.values()) < 3:
            time.sleep(0.001)  # until they wait: there is no event for that
        answer.set()
        errors = [future.exception(30) for future in (first, *others)]
        assert all(isinstance(error, SchemaRegistryError) and error.status == 403 for error in errors)
        assert len({str(error) for error in errors}) == 1
        assert len(server.requests) == 1


def test_a_thread_that_waits_has_a_deadline_of_its_own() -> None:
    cache = SchemaCache(10)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        started = threading.Event()

        def never() -> object:
            started.set()
            ended.wait(30)
            raise SchemaRegistryError("late")

        first = threads.submit(cache.get, 1, never, time.monotonic() + 30)
        assert started.wait(30)
        with pytest.raises(SchemaRegistryError, match="another thread is waiting") as failed:
            cache.get(1, never, time.monotonic() + 0.05)
        assert failed.value.retriable
        ended.set()
        assert isinstance(first.exception(30), SchemaRegistryError)


def test_a_thread_that_waits_takes_over_if_the_first_is_interrupted() -> None:
    cache = SchemaCache(10)
    started, interrupt = threading.Event(), threading.Event()

    def interrupted() -> object:
        started.set()
        interrupt.wait(30)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get, 1, interrupted, time.monotonic() + 30)
        assert started.wait(30)
        second = threads.submit(cache.get, 1, lambda: "schema", time.monotonic() + 30)
        interrupt.set()
        assert isinstance(first.exception(30), KeyboardInterrupt)
        assert second.result(30) == "schema"


def test_an_unknown_id_is_asked_again_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [UNKNOWN, response({"schema": "{}"})]
    with scripted_server(lambda _request: answers.pop(0)) as server:
        registry = SchemaRegistry(server.url)
        for _ in range(3):
            with pytest.raises(SchemaNotFoundError):
                registry.schema(1)
        assert len(server.requests) == 1
        monkeypatch.setattr(cache_module.time, "monotonic", lambda now=time.monotonic: now() + 1.1)
        assert registry.schema(1).text == "{}"


def test_an_error_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that is away for a moment."""
    monkeypatch.setattr(http_module, "_FIRST_PAUSE", 0.001)
    answers = [response({}, 503), response({"schema": "{}"})]
    with scripted_server(lambda _request: answers.pop(0)) as server:
        registry = SchemaRegistry(server.url, retries=0)
        with pytest.raises(SchemaRegistryError) as failed:
            registry.schema(1)
        assert failed.value.retriable
        assert registry.schema(1).text == "{}"


def test_a_schema_that_was_unknown_is_found_once_it_is_registered() -> None:
    def script(request: Request) -> Response:
        return response({"id": 3, "version": 1}) if request.target.endswith("/versions") else UNKNOWN

    with scripted_server(script) as server:
        registry = SchemaRegistry(server.url)
        with pytest.raises(SchemaNotFoundError):
            registry.look_up("s", '"int"', "AVRO")
        assert registry.register("s", '"int"', "AVRO").id == 3
        assert registry.look_up("s", '"int"', "AVRO").id == 3
        assert len(server.requests) == 2


def test_a_version_that_registering_does_not_return_is_looked_up() -> None:
    known = response({"id": 3, "version": 5, "subject": "s", "schema": '"int"'})
    answers = iter([UNKNOWN, response({"id": 3}), known])
    with scripted_server(lambda _request: next(answers)) as server:
        registry = SchemaRegistry(server.url)
        with pytest.raises(SchemaNotFoundError):
            registry.look_up("s", '"int"', "AVRO")
        assert registry.register("s", '"int"', "AVRO").version is None
        assert [registry.look_up("s", '"int"', "AVRO").version for _ in range(2)] == [5, 5]
        assert len(server.requests) == 3


def test_the_schemas_that_were_used_last_are_kept() -> None:
    with scripted_server(by_target) as server:
        registry = SchemaRegistry(server.url, cache_size=2)
        for number in (1, 2, 1, 3, 1, 2):
            registry.schema(number)
        assert [request.target[-1] for request in server.requests] == ["1", "2", "3", "2"]


def test_unknown_ids_are_bounded() -> None:
    with scripted_server(lambda _request: UNKNOWN) as server:
        registry = SchemaRegistry(server.url, cache_size=5)
        for number in range(20):
            with pytest.raises(SchemaNotFoundError):
                registry.schema(number)
        assert len(registry._cache._unknown) == 5


def test_the_latest_version_is_asked_every_time() -> None:
    number = iter(range(1, 10))

    def script(_request: Request) -> Response:
        return response({"schema": "{}", "id": (n := next(number)), "version": n, "subject": "a/b"})

    with scripted_server(script) as server:
        registry = SchemaRegistry(server.url)
        assert [registry.latest("a/b").version for _ in range(3)] == [1, 2, 3]
        assert server.requests[0].target == "/subjects/a%2Fb/versions/latest"
        assert registry.version("a/b", 4) is registry.version("a/b", 4)


def test_a_forked_child_has_connections_and_locks_of_its_own() -> None:
    """Spark's daemon forks its workers. The parent's threads may hold any lock at that moment."""
    with scripted_server(by_target) as server:
        registry = SchemaRegistry(server.url)
        registry.schema(1)
        subjects = SubjectSchemas(registry, "readings-value", "AVRO")
        with registry._cache._lock, registry._http.connections._lock, subjects._lock:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the server has threads; the child uses none
                child = os.fork()
            if child == 0:
                signal.alarm(30)
                with subjects._lock:
                    os._exit(0 if registry.schema(2).text == "/schemas/ids/2" and registry.schema(1).id == 1 else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        registry.schema(3)
        assert [request.connection for request in server.requests] == [1, 2, 1]


def test_a_dropped_registry_closes_its_connections() -> None:
    closed = threading.Event()

    def script(request: Request) -> Response:
        def answer(sock: socket.socket) -> None:
            sock.sendall(response({"schema": "{}"}))
            if sock.recv(1) == b"":
                closed.set()

        return answer

    with scripted_server(script) as server:
        SchemaRegistry(server.url).schema(1)
        gc.collect()
        assert closed.wait(30)


@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (2**63, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_an_id_that_no_record_can_contain_is_an_error(wrong: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        SchemaRegistry("http://localhost").schema(wrong)  # type: ignore[arg-type]
