"""Secrets of a registry are in no error, log line, repr or URL; and settings that contradict each other are errors."""

from __future__ import annotations

import base64
import logging
import pickle
import ssl
from typing import Any

import pytest

from headrace.errors import ConfigError, SchemaRegistryError
from headrace.formats import SchemaRegistry
from headrace.formats.registry import http as http_module
from support.formats.scripted_server import Request, Response, response, scripted_server

USER, PASSWORD, TOKEN, KEY = "someone", "pass/wo:rd@1", "tok.en-1234", "api-key-value"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
SECRETS = (PASSWORD, TOKEN, KEY, BASIC, "wo:rd", "pass%2Fwo", "wo%3Ard")
QUOTED = "pass%2Fwo%3Ard%401"

LOGINS: dict[str, dict[str, Any]] = {
    "basic": {"username": USER, "password": PASSWORD, "headers": {"X-Api-Key": KEY}},
    "token": {"token": TOKEN},
    "function": {"token": lambda: TOKEN},
    "header": {"headers": {"Authorization": f"Bearer {TOKEN}"}},
}


def shows_a_secret(text: str) -> bool:
    return any(secret in text for secret in SECRETS)


def repeats_headers(status: int, code: int | None = None) -> Any:
    """A server that repeats the headers that it received in its error, as some proxies do."""

    def script(request: Request) -> Response:
        return response({"error_code": code, "message": f"bad request: {request.headers}"}, status)

    return script


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_FIRST_PAUSE", 0.001)


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize(
    ("status", "code"), [(401, 401), (400, None), (404, 40403), (404, None), (422, 42201), (503, 1)]
)
def test_no_error_and_no_log_line_shows_a_secret(
    login: str, status: int, code: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted_server(repeats_headers(status, code)) as server, caplog.at_level(logging.DEBUG):
        registry = SchemaRegistry(server.url, retries=1, **LOGINS[login])
        with pytest.raises(SchemaRegistryError) as failed:
            registry.schema(1)
        assert any(secret in str(server.requests[0].headers) for secret in SECRETS)
    assert "bad request" in str(failed.value)
    assert not shows_a_secret(str(failed.value))
    assert not shows_a_secret(repr(failed.value.__cause__))
    assert not shows_a_secret(caplog.text)
    assert ("retrying" in caplog.text) == (status == 503)
    assert not shows_a_secret(repr(registry))


def test_no_part_of_a_secret_is_shown_where_a_message_is_cut_off() -> None:
    def script(request: Request) -> Response:
        return response({"message": "x" * 470 + request.headers["authorization"]}, 400)

    with scripted_server(script) as server, pytest.raises(SchemaRegistryError) as failed:
        SchemaRegistry(server.url, username=USER, password=PASSWORD).schema(1)
    assert "xxx" in str(failed.value)
    assert BASIC[:6] not in str(failed.value)


def test_a_user_in_the_url_logs_in_and_is_never_shown() -> None:
    def script(request: Request) -> Response:
        assert request.headers["authorization"] == f"Basic {BASIC}"
        return response({"schema": "{}"}) if request.target.endswith("/1") else response({"message": "no"}, 400)

    with scripted_server(script) as server:
        registry = SchemaRegistry(server.url.replace("//", f"//{USER}:{QUOTED}@"))
        assert registry.schema(1).text == "{}"
        assert repr(registry) == f"SchemaRegistry({server.url!r}, login='basic')"
        with pytest.raises(SchemaRegistryError) as failed:
            registry.schema(2)
    assert server.url in str(failed.value)
    assert not shows_a_secret(str(failed.value))


@pytest.mark.parametrize(
    "url",
    [
        f"http://{USER}:{PASSWORD}@host",
        f"http://{USER}:{QUOTED}@host:port",
        f"http://{USER}:{QUOTED}@",
        f"http://{USER}:{QUOTED}@host/path?apikey={KEY}",
        f"ftp://{USER}:{QUOTED}@host",
        f"{USER}:{QUOTED}@host",
        f"http://{USER}:80/{PASSWORD}@host",
        f"http://{USER}:{QUOTED}@[::1",
    ],
)
def test_the_error_for_an_invalid_url_shows_no_secret(url: str) -> None:
    with pytest.raises(ConfigError) as failed:
        SchemaRegistry(url)
    assert not shows_a_secret(str(failed.value))
    assert failed.value.__suppress_context__ or failed.value.__context__ is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"url": ""}, "needs a URL"),
        ({"url": []}, "needs a URL"),
        ({"url": "localhost:8081"}, "'localhost:8081' is not a valid URL"),
        ({"url": "http://a:b@x,http://c:d@y"}, "different users"),
        ({"url": "http://a:b@x", "token": "t"}, "contains a user"),
        ({"username": "a"}, "needs both"),
        ({"password": "a"}, "needs both"),
        ({"username": "a:b", "password": "c"}, "must not contain ':'"),
        ({"username": "a", "password": "b", "token": "c"}, "either username and password, or a token"),
        ({"token": "a\nb"}, "the token for the schema registry is not valid"),
        ({"token": ""}, "the token for the schema registry is not valid"),
        ({"token": "t", "headers": {"authorization": "x"}}, "cannot be combined"),
        ({"headers": {"a b": "x"}}, "not a valid name"),
        ({"headers": {"a": "x\r\nb: y"}}, "the value of the header a has"),
        ({"ssl_context": ssl.create_default_context(), "ca_file": "x"}, "cannot be combined"),
        ({"key_file": "x"}, "need cert_file"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"request_timeout": float("inf")}, "request_timeout must be"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"cache_size": 0}, "cache_size must be at least 1"),
    ],
)
def test_invalid_settings_are_errors(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SchemaRegistry(**{"url": "http://localhost", **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"url": 1},
        {"url": [1]},
        {"username": 1, "password": "x"},
        {"token": 1},
        {"headers": [1]},
        {"headers": {"a": 1}},
        {"ca_file": 1},
        {"timeout": "x"},
        {"retries": 1.5},
    ],
)
def test_settings_of_a_wrong_type_are_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        SchemaRegistry(**{"url": "http://localhost", **settings})


@pytest.mark.parametrize("login", ["basic", "token", "header"])
def test_a_registry_can_be_pickled(login: str) -> None:
    """Spark sends it to executors."""
    with scripted_server(lambda _request: response({"schema": "{}"})) as server:
        registry = SchemaRegistry(server.url, timeout=7, **LOGINS[login])
        registry.schema(1)
        copy = pickle.loads(pickle.dumps(registry))
        assert copy.schema(1) == registry.schema(1)
        first, second = server.requests
        assert first.headers == second.headers
        assert repr(copy) == repr(registry)
        assert not shows_a_secret(repr(copy))


def test_a_registry_with_a_context_says_that_it_cannot_be_pickled() -> None:
    registry = SchemaRegistry("https://localhost", ssl_context=ssl.create_default_context())
    with pytest.raises(TypeError, match="use ca_file"):
        pickle.dumps(registry)


def test_a_token_function_is_called_for_every_request() -> None:
    tokens = iter(["one", "two"])
    with scripted_server(lambda _request: response({"schema": "{}"})) as server:
        registry = SchemaRegistry(server.url, token=lambda: next(tokens))
        registry.schema(1)
        registry.schema(2)
        assert [request.headers["authorization"] for request in server.requests] == ["Bearer one", "Bearer two"]
