"""Token sources that fail: every wait has a timeout, and retriable failures differ from fatal ones. Valid and invalid
tokens are tested with a broker."""

from __future__ import annotations

import asyncio
import base64
import datetime
import http.client
import io
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from email.message import Message
from typing import Any

import pytest

from headrace._security import token_endpoint, tokens
from headrace._security.logins import token_source
from headrace._security.tokens import OAuthToken
from headrace.config.consumer import ConsumerConfig
from headrace.errors import AuthenticationError, HeadraceError, NetworkError
from support.harness.retries import patiently

OAUTH = {"bootstrap.servers": "b:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


CLIENT = {"sasl.oauthbearer.client.id": "me@x", "sasl.oauthbearer.client.secret": "hush/h+sh="}


def asked(settings: dict[str, Any]) -> OAuthToken:
    return asyncio.run(token_source(ConsumerConfig.parse(OAUTH | settings))())


def failure(settings: dict[str, Any]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        asked(settings)
    return caught.value


def test_a_token_function_that_does_not_return_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_TOKEN_WITHIN", 0.1)
    over = threading.Event()

    def stuck() -> str:
        over.wait(100)
        return "too late"

    async def stuck_too() -> str:
        await asyncio.sleep(100)  # never ends by itself
        return "too late"

    began = time.monotonic()
    for callback in (stuck, stuck_too):
        error = failure({"sasl.oauthbearer.token.callback": callback})
        assert isinstance(error, NetworkError)
        assert str(error) == "the token source returned no token within 0.1 s"
    assert time.monotonic() - began < 50
    over.set()


def test_a_process_ends_without_waiting_for_a_token_function() -> None:
    program = (
        "import asyncio, time\nfrom headrace._security import tokens\ntokens._TOKEN_WITHIN = 0.1\n"
        # The callback sleeps for longer than the process may take to exit.
        "ask = tokens.with_timeout(tokens.from_callback(lambda: time.sleep(200), {}))\n"
        "try: asyncio.run(ask())\nexcept Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "the token source returned no token within 0.1 s\n"


@pytest.fixture
def dripping() -> Iterator[Callable[[bytes], str]]:
    """An endpoint that sends `head` and then single bytes until the client disconnects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(head: bytes) -> None:
            link, _ = server.accept()
            with link:
                link.recv(65536)
                link.sendall(head)
                try:
                    while True:
                        link.sendall(b" ")
                        time.sleep(0.02)  # the endpoint drips
                except OSError:
                    return

        def start(head: bytes) -> str:
            threading.Thread(target=serve, args=(head,), daemon=True).start()
            return f"http://127.0.0.1:{server.getsockname()[1]}/token"

        yield start


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
def test_a_token_endpoint_that_responds_byte_by_byte_does_not_block(
    dripping: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, status: bytes
) -> None:
    def scenario(scale: float) -> None:
        monkeypatch.setattr(token_endpoint, "_WITHIN", 0.2 * scale)
        url = dripping(b"HTTP/1.1 " + status + b"\r\nContent-Length: 10000\r\n\r\n")
        began = time.monotonic()
        error = failure(CLIENT | {"sasl.oauthbearer.token.endpoint.url": url})
        assert time.monotonic() - began < 20
        said = "the response took too long" if status.startswith(b"200") else "answered 400"
        assert said in str(error)

    patiently(scenario)


# -- callbacks ---------------------------------------------------------------------------------------------------------


def http_error(status: int) -> Exception:
    return urllib.error.HTTPError("http://x", status, "no", Message(), io.BytesIO())


def answered(status: int) -> Exception:
    """An HTTP error as the package requests raises it."""
    error = OSError(status)
    error.response = type("Response", (), {"status_code": status})()  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ConnectionResetError("vault"), NetworkError),
        (TimeoutError("vault"), NetworkError),
        (socket.gaierror("vault"), NetworkError),
        (http_error(503), NetworkError),
        (http_error(429), NetworkError),
        (answered(502), NetworkError),
        (http_error(401), AuthenticationError),
        (answered(403), AuthenticationError),
        (ValueError("vault"), AuthenticationError),
        (SystemExit(3), AuthenticationError),
    ],
    ids=repr,
)
def test_transient_errors_of_a_token_function_are_network_errors(
    raised: BaseException, kind: type[HeadraceError]
) -> None:
    def fails() -> str:
        raise raised

    async def fails_too() -> str:
        raise raised

    for callback in (fails, fails_too):
        error = failure({"sasl.oauthbearer.token.callback": callback})
        assert type(error) is kind
        assert str(error) == f"sasl.oauthbearer.token.callback failed: {type(raised).__name__}"
        assert error.__cause__ is raised


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "returned a NoneType: it must return a string or an OAuthToken"),
        (
            OAuthToken("t", datetime.datetime(2030, 1, 1)),
            "returned a datetime as expires_at: it must be seconds since 1970",
        ),  # type: ignore[arg-type]
        (OAuthToken("t", "2030"), "returned a str as expires_at"),  # type: ignore[arg-type]
        (OAuthToken("t", True), "returned a bool as expires_at"),
        (OAuthToken("t", float("nan")), "returned a float as expires_at"),
        (OAuthToken("t", None, None), "extensions must be"),  # type: ignore[arg-type]
        (OAuthToken("t", None, {"a": 1}), "extensions must be"),  # type: ignore[dict-item]
        (OAuthToken("t", None, {"a": "x\1auth=Bearer y"}), "extensions must be"),
        (OAuthToken("t", None, {"auth": "x"}), "an extension cannot be named auth"),
        ("a b", "returned an invalid token"),
    ],
    ids=repr,
)
def test_an_invalid_token_of_a_token_function_is_an_authentication_error(given: Any, said: str) -> None:
    error = failure({"sasl.oauthbearer.token.callback": lambda: given})
    assert isinstance(error, AuthenticationError)
    assert said in str(error)


def test_an_awaitable_of_a_token_function_is_awaited() -> None:
    class Vault:
        async def __call__(self) -> OAuthToken:
            await asyncio.sleep(0)  # a real suspension
            return OAuthToken("t", 5_000_000_000)

    vault = Vault()
    for callback in (vault, vault.__call__, lambda: vault()):
        assert asked({"sasl.oauthbearer.token.callback": callback}).value == "t"


# -- endpoints ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def once() -> Iterator[Callable[[bytes], tuple[str, list[bytes]]]]:
    """An endpoint that sends `answer` to one request and adds the request to the list."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(answer: bytes, requests: list[bytes]) -> None:
            link, _ = server.accept()
            with link:
                request = b""
                while b"grant_type" not in request and (part := link.recv(65536)):  # headers, then the body
                    request += part
                requests.append(request)
                link.sendall(answer)

        def start(answer: bytes) -> tuple[str, list[bytes]]:
            requests: list[bytes] = []
            threading.Thread(target=serve, args=(answer, requests), daemon=True).start()
            return f"http://127.0.0.1:{server.getsockname()[1]}/token", requests

        yield start


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"upstream gone\r\n", "did not return a valid response: upstream gone"),
        (b"not hush/h+sh= please\r\n", "did not return a valid response: (hidden because it contains the secret)"),
        (b"", "did not return a valid response: "),
        (
            b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
            "did not return a valid response: got more than 100 headers",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
            "did not return a valid response: IncompleteRead",
        ),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"acc', "did not return a valid response: IncompleteRead"),
        (b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", "answered 503"),
    ],
)
def test_an_invalid_response_of_a_token_endpoint_is_a_network_error(
    once: Callable[[bytes], tuple[str, list[bytes]]], answer: bytes, said: str
) -> None:
    """It may be a load balancer that restarts."""
    url, _ = once(answer)
    error = failure(CLIENT | {"sasl.oauthbearer.token.endpoint.url": url})
    assert type(error) is NetworkError
    assert str(error).startswith(f"the token endpoint at {url} {said}")


def test_a_truncated_rejection_of_a_token_endpoint_is_an_authentication_error(
    once: Callable[[bytes], tuple[str, list[bytes]]],
) -> None:
    url, _ = once(b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n")
    error = failure(CLIENT | {"sasl.oauthbearer.token.endpoint.url": url})
    assert (type(error), str(error)) == (AuthenticationError, f"the token endpoint at {url} answered 400")


@pytest.mark.parametrize(("urlencode", "sent"), [("false", "me@x:hush/h+sh="), ("true", "me%40x:hush%2Fh%2Bsh%3D")])
def test_client_id_and_secret_are_sent_as_java_sends_them(
    once: Callable[[bytes], tuple[str, list[bytes]]], urlencode: str, sent: str
) -> None:
    url, requests = once(b'HTTP/1.1 200 OK\r\n\r\n{"access_token": "t", "expires_in": 60}')
    settings = CLIENT | {"sasl.oauthbearer.token.endpoint.url": url}
    if urlencode == "true":
        settings["sasl.oauthbearer.header.urlencode"] = urlencode
    assert asked(settings).value == "t"
    headers = http.client.parse_headers(io.BytesIO(requests[0].partition(b"\r\n")[2]))
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == sent
