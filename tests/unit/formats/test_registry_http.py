"""The registry's HTTP: retries, failover, redirects and deadlines, against servers that misbehave."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, SchemaNotFoundError, SchemaRegistryError
from headrace.formats import SchemaRegistry
from headrace.formats.registry import connection as connection_module
from headrace.formats.registry import http as http_module
from headrace.local.certificates import Authority
from support.formats.scripted_server import Request, Response, Script, response, scripted_server
from support.harness.retries import patiently

SCHEMA = response({"schema": '"string"'})


def in_turn(*answers: Response) -> Script:
    """The answers in this order, the last one again and again."""
    left = list(answers)

    def script(_request: Request) -> Response:
        return left.pop(0) if len(left) > 1 else left[0]

    return script


def registry_at(*urls: str, **settings: Any) -> SchemaRegistry:
    return SchemaRegistry(urls, **{"timeout": 20.0, **settings})


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_FIRST_PAUSE", 0.001)


class TestRetries:
    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_a_status_that_may_pass_is_retried(self, status: int) -> None:
        with scripted_server(in_turn(response({}, status), response({}, status), SCHEMA)) as server:
            assert registry_at(server.url).schema(1).text == '"string"'
            assert len(server.requests) == 3

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 422, 501])
    def test_any_other_status_is_not_retried(self, status: int) -> None:
        with scripted_server(in_turn(response({"message": "no"}, status), SCHEMA)) as server:
            with pytest.raises(SchemaRegistryError) as failed:
                registry_at(server.url).schema(1)
            assert len(server.requests) == 1
        assert failed.value.status == status
        assert not failed.value.retriable

    @pytest.mark.parametrize(
        "broken",
        [
            None,
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
            b"garbage\r\n\r\n",
        ],
        ids=["closed", "cut off", "cut off chunk", "not HTTP"],
    )
    def test_a_connection_that_breaks_is_retried(self, broken: bytes | None) -> None:
        def cut(sock: socket.socket) -> None:
            sock.sendall(broken or b"")
            sock.shutdown(socket.SHUT_RDWR)

        with scripted_server(in_turn(cut, SCHEMA)) as server:
            assert registry_at(server.url).schema(1).text == '"string"'

    def test_retries_end_with_an_error_that_says_where_and_why(self) -> None:
        url = f"http://127.0.0.1:{unused_port()}"
        with pytest.raises(SchemaRegistryError, match=rf"{url}: Connection refused \(3 attempts\)") as failed:
            registry_at(url, retries=2).schema(1)
        assert failed.value.retriable
        assert "Check that it is running" in str(failed.value)

    def test_a_request_is_sent_once_without_retries(self) -> None:
        with scripted_server(in_turn(response({}, 503))) as server:
            with pytest.raises(SchemaRegistryError, match="HTTP 503 Service Unavailable") as failed:
                registry_at(server.url, retries=0).schema(1)
            assert len(server.requests) == 1
        assert failed.value.status == 503

    @pytest.mark.parametrize("value", ["1", "a date"])
    def test_the_pause_is_as_long_as_the_registry_asks(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pauses: list[float] = []
        monkeypatch.setattr(http_module.time, "sleep", pauses.append)
        tomorrow = format_datetime(datetime.now(UTC) + timedelta(hours=23), usegmt=True)
        limited = response({}, 429, headers={"Retry-After": value if value == "1" else tomorrow})
        with scripted_server(in_turn(limited, SCHEMA)) as server:
            assert registry_at(server.url, timeout=86_400).schema(1).text == '"string"'
        assert len(pauses) == 1
        assert pauses[0] == 1.0 if value == "1" else 82_000 < pauses[0] <= 82_800

    @pytest.mark.parametrize("value", ["100", "99999999999999999999", "soon"])
    def test_a_pause_beyond_the_deadline_is_an_error_at_once(self, value: str) -> None:
        limited = response({}, 429, headers={"Retry-After": value})
        started = time.monotonic()
        with (
            scripted_server(in_turn(limited)) as server,
            pytest.raises(SchemaRegistryError, match="HTTP 429") as failed,
        ):
            registry_at(server.url, timeout=30.0, retries=2).schema(1)
        assert ("asks to wait 100 s" in str(failed.value)) == (value == "100")
        assert time.monotonic() - started < 20


class TestSeveralUrls:
    def test_the_next_url_is_asked_if_one_does_not_respond(self) -> None:
        with scripted_server(in_turn(SCHEMA, response({"schema": '"long"'}))) as server:
            away = f"http://127.0.0.1:{unused_port()}"
            registry = SchemaRegistry(f"{away},{server.url}", retries=0)
            assert registry.schema(1).text == '"string"'
            assert registry.schema(2).text == '"long"'

    def test_the_url_that_responded_is_asked_first_from_then_on(self) -> None:
        with scripted_server(in_turn(response({}, 500))) as bad, scripted_server(in_turn(SCHEMA)) as good:
            registry = registry_at(bad.url, good.url)
            for number in range(5):
                registry.schema(number)
            assert len(bad.requests) == 1

    def test_an_error_names_all_urls(self) -> None:
        with (
            scripted_server(in_turn(response({}, 500))) as bad,
            scripted_server(in_turn(None)) as mute,
            pytest.raises(SchemaRegistryError) as failed,
        ):
            registry_at(bad.url, mute.url, retries=0).schema(1)
        assert f"{bad.url}: HTTP 500" in str(failed.value)
        assert f"{mute.url}: it closed the connection" in str(failed.value)

    def test_an_unknown_id_is_not_asked_elsewhere(self) -> None:
        unknown = response({"error_code": 40403, "message": "Schema 1 not found"}, 404)
        with scripted_server(in_turn(unknown)) as one, scripted_server(in_turn(SCHEMA)) as other:
            with pytest.raises(SchemaNotFoundError, match="no schema with id 1"):
                registry_at(one.url, other.url).schema(1)
            assert not other.requests


class TestDeadlines:
    def test_a_server_that_does_not_respond_costs_no_more_than_the_timeout(self) -> None:
        with scripted_server(in_turn(lambda _sock: None)) as server:
            started = time.monotonic()
            with pytest.raises(SchemaRegistryError, match="no response in time") as failed:
                registry_at(server.url, timeout=0.5, request_timeout=0.2).schema(1)
            assert time.monotonic() - started < 5
        assert failed.value.retriable

    @pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n"])
    def test_a_server_that_sends_a_byte_now_and_then_costs_no_more_than_the_timeout(self, start: bytes) -> None:
        """Each byte comes well before the timeout of a socket operation."""
        ended = threading.Event()

        def dribble(sock: socket.socket) -> None:
            sock.sendall(start)
            while not ended.wait(0.05):
                sock.sendall(b"x")

        with scripted_server(in_turn(dribble)) as server:
            started = time.monotonic()
            try:
                with pytest.raises(SchemaRegistryError, match="no response in time"):
                    registry_at(server.url, timeout=0.5, retries=0).schema(1)
                assert time.monotonic() - started < 5
            finally:
                ended.set()

    def test_another_url_is_asked_when_a_request_times_out(self) -> None:
        def scenario(scale: float) -> None:
            with scripted_server(in_turn(lambda _sock: None)) as mute, scripted_server(in_turn(SCHEMA)) as good:
                assert registry_at(mute.url, good.url, request_timeout=0.2 * scale).schema(1).text == '"string"'

        patiently(scenario)


class TestResponses:
    @pytest.mark.parametrize(
        ("raw", "why"),
        [
            (b"<html>Welcome</html>", "it is not JSON. Is this the URL of a schema registry.*<html>Welcome"),
            (b"\xff\xfe", "it is not JSON"),
            (b"[" * 100_000, "it is not JSON"),
            (b"[]", "it is not a JSON object"),
            (b"{}", "it has no string 'schema'"),
            (b'{"schema": 1}', "it has no string 'schema'"),
            (b'{"schema": "x", "references": {}}', "its references are not a list"),
            (b'{"schema": "x", "references": [1]}', "a reference is not an object"),
            (b'{"schema": "x", "references": [{"name": "a", "subject": "b"}]}', "has no version number"),
            (b'{"schema": "x", "references": [{"name": "a", "version": 1}]}', "it has no string 'artifactId'"),
            (b'{"schema": "x", "schemaType": "XSD"}', "type 'XSD': only AVRO, JSON and PROTOBUF"),
            (b'{"schema": "x", "schemaType": []}', "only AVRO, JSON and PROTOBUF"),
        ],
    )
    def test_a_response_that_is_no_schema_is_an_error(self, raw: bytes, why: str) -> None:
        with (
            scripted_server(in_turn(response(raw=raw))) as server,
            pytest.raises(SchemaRegistryError, match=why) as failed,
        ):
            registry_at(server.url).schema(1)
        assert not failed.value.retriable

    @pytest.mark.parametrize("declared", [True, False])
    def test_a_huge_response_is_refused(self, declared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection_module, "LARGEST_ANSWER", 1000)
        length = b"Content-Length: 1001" if declared else b"Transfer-Encoding: chunked"
        body = b"" if declared else b"400\r\n" + b"x" * 1024 + b"\r\n"
        with (
            scripted_server(in_turn(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n" + body)) as server,
            pytest.raises(SchemaRegistryError, match="is larger than"),
        ):
            registry_at(server.url).schema(1)

    def test_a_control_character_of_the_server_is_not_shown(self) -> None:
        with (
            scripted_server(in_turn(response(raw=b"\x1b[31mred"))) as server,
            pytest.raises(SchemaRegistryError) as failed,
        ):
            registry_at(server.url).schema(1)
        assert "\x1b" not in str(failed.value)

    @pytest.mark.parametrize(
        ("status", "body", "why"),
        [
            (401, {"error_code": 401, "message": "Unauthorized"}, r"rejected the login \(HTTP 401\) \(Unauthorized\)"),
            (403, {}, "denies access to schema with id 1"),
            (404, {"error_code": 40401, "message": "x"}, "has no schema with id 1"),
            (404, {}, "Check the URL of the schema registry; that of Apicurio ends with /apis/ccompat/v7"),
            (409, {"error_code": 409, "message": "too new"}, r"incompatible with earlier versions \(too new\)"),
            (422, {"error_code": 42201, "message": "no Avro"}, r"as invalid \(no Avro\)"),
            (418, {}, "HTTP 418"),
        ],
    )
    def test_errors_of_the_registry_say_what_to_do(self, status: int, body: object, why: str) -> None:
        with (
            scripted_server(in_turn(response(body, status))) as server,
            pytest.raises(SchemaRegistryError, match=why) as failed,
        ):
            registry_at(server.url).schema(1)
        assert failed.value.status == status
        assert isinstance(failed.value, SchemaNotFoundError) == ("has no" in why)


class TestRedirects:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_redirect_is_followed(self, status: int) -> None:
        moved = response({}, status, headers={"Location": "/elsewhere/schemas/ids/1"})
        with scripted_server(in_turn(moved, SCHEMA)) as server:
            assert registry_at(server.url).schema(1).text == '"string"'
            assert [request.target for request in server.requests] == ["/schemas/ids/1", "/elsewhere/schemas/ids/1"]

    def test_the_method_and_the_body_survive_a_redirect(self) -> None:
        moved = response({}, 307, headers={"Location": "/there"})
        with scripted_server(in_turn(moved, response({"id": 7}))) as server:
            assert registry_at(server.url).register("s", '"string"', "AVRO").id == 7
            assert [request.method for request in server.requests] == ["POST", "POST"]
            assert server.requests[1].json == {"schema": '"string"'}

    def test_a_redirect_that_changes_the_method_is_an_error(self) -> None:
        moved = response({}, 302, headers={"Location": "/there"})
        with (
            scripted_server(in_turn(moved)) as server,
            pytest.raises(SchemaRegistryError, match="does not keep the method"),
        ):
            registry_at(server.url).register("s", '"string"', "AVRO")

    def test_a_loop_of_redirects_ends(self) -> None:
        moved = response({}, 307, headers={"Location": "/again"})
        with scripted_server(in_turn(moved)) as server:
            with pytest.raises(SchemaRegistryError, match="more than 5 times"):
                registry_at(server.url).schema(1)
            assert len(server.requests) == 6

    @pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://host/", "http://[/", "/a b", "/é"])
    def test_a_redirect_to_something_else_than_http_is_an_error(self, location: str) -> None:
        moved = f"HTTP/1.1 307 x\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
        with (
            scripted_server(in_turn(moved)) as server,
            pytest.raises(SchemaRegistryError, match="which is not a valid URL"),
        ):
            registry_at(server.url).schema(1)

    def test_credentials_are_not_sent_to_another_host(self) -> None:
        with scripted_server(in_turn(SCHEMA)) as other:
            moved = response({}, 307, headers={"Location": f"{other.url}/schemas/ids/1"})
            with scripted_server(in_turn(moved)) as server:
                registry = registry_at(server.url, username="user", password="secret", headers={"X-Api-Key": "key"})
                assert registry.schema(1).text == '"string"'
                assert {"authorization", "x-api-key"} <= server.requests[0].headers.keys()
            assert not {"authorization", "x-api-key"} & other.requests[0].headers.keys()

    def test_credentials_are_sent_to_the_other_url_of_the_registry(self) -> None:
        with scripted_server(in_turn(SCHEMA)) as other:
            moved = response({}, 307, headers={"Location": f"{other.url}/schemas/ids/1"})
            with scripted_server(in_turn(moved)) as server:
                registry_at(server.url, other.url, token="abc").schema(1)
            assert other.requests[0].headers["authorization"] == "Bearer abc"


class TestConnections:
    def test_a_connection_is_reused(self) -> None:
        with scripted_server(in_turn(SCHEMA)) as server:
            registry = registry_at(server.url)
            for number in range(10):
                registry.schema(number)
            assert {request.connection for request in server.requests} == {1}

    @pytest.mark.parametrize("head", ["HTTP/1.1 200 OK\r\nConnection: close", "HTTP/1.0 200 OK"])
    def test_a_connection_that_the_server_closes_is_not_reused(self, head: str) -> None:
        body = b'{"schema": "text"}'
        raw = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

        def answer(sock: socket.socket) -> None:
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_RDWR)

        with scripted_server(in_turn(answer)) as server:
            registry = registry_at(server.url, retries=0)
            assert [registry.schema(number).text for number in range(3)] == ["text"] * 3
            assert [request.connection for request in server.requests] == [1, 2, 3]

    def test_an_idle_connection_that_the_server_closed_costs_no_retry(self) -> None:
        with scripted_server(in_turn(SCHEMA)) as server:
            registry = registry_at(server.url, retries=0)
            registry.schema(1)
            server.close_connections()
            assert registry.schema(2).text == '"string"'
            assert [request.connection for request in server.requests][-1] == 2

    def test_an_old_idle_connection_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with scripted_server(in_turn(SCHEMA)) as server:
            registry = registry_at(server.url)
            registry.schema(1)
            monkeypatch.setattr(connection_module, "_IDLE_FOR", 0.0)
            registry.schema(2)
            assert [request.connection for request in server.requests] == [1, 2]


class TestTls:
    def test_a_certificate_of_an_unknown_ca_is_an_error_at_once(self, tmp_path: Path) -> None:
        with (
            scripted_server(in_turn(SCHEMA), server_context(tmp_path, Authority())) as server,
            pytest.raises(SchemaRegistryError, match=r"cannot verify the certificate.*Set ca_file") as failed,
        ):
            registry_at(server.url).schema(1)
        assert not failed.value.retriable

    def test_a_certificate_of_the_given_ca_is_accepted(self, tmp_path: Path) -> None:
        authority = Authority()
        with scripted_server(in_turn(SCHEMA), server_context(tmp_path, authority)) as server:
            ca_file = write(tmp_path / "ca.pem", authority.pem)
            assert registry_at(server.url, ca_file=ca_file).schema(1).text == '"string"'

    def test_a_client_with_a_certificate_is_accepted(self, tmp_path: Path) -> None:
        authority = Authority()
        own = authority.issue("client", client=True)
        context = server_context(tmp_path, authority)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.pem)
        ca_file = write(tmp_path / "ca.pem", authority.pem)
        with scripted_server(in_turn(SCHEMA), context) as server:
            files = {
                "cert_file": write(tmp_path / "c.pem", own.certificates),
                "key_file": write(tmp_path / "k.pem", own.key),
            }
            assert registry_at(server.url, ca_file=ca_file, **files).schema(1).text == '"string"'
            with pytest.raises(SchemaRegistryError):
                registry_at(server.url, ca_file=ca_file, retries=0).schema(1)

    @pytest.mark.parametrize("name", ["ca_file", "cert_file"])
    def test_a_missing_file_is_an_error_when_the_registry_is_created(self, name: str, tmp_path: Path) -> None:
        settings: dict[str, Any] = {name: tmp_path / "missing"}
        with pytest.raises(ConfigError, match=f"{name}=.*missing"):
            SchemaRegistry("https://localhost", **settings)


def server_context(where: Path, authority: Authority) -> ssl.SSLContext:
    signed = authority.issue("server", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write(where / "server.pem", signed.key + signed.certificates))
    return context


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
