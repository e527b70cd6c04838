"""Tokens that do not come: nobody waits for them for long. That right and wrong ones do is tested with a broker."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.config import ConsumerConfig
from headrace.errors import HeadraceError, NetworkError
from headrace.security import tokens
from headrace.security.access import token_source
from support.patience import patiently

OAUTH = {"bootstrap.servers": "b:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def failure(settings: dict[str, object]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        asyncio.run(token_source(ConsumerConfig.parse(OAUTH | settings))())
    return caught.value


def test_a_function_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_TOKEN_WITHIN", 0.1)
    over = threading.Event()

    def stuck() -> str:
        over.wait(100)
        return "too late"

    async def stuck_too() -> str:
        await asyncio.sleep(100)
        return "too late"

    began = time.monotonic()
    for callback in (stuck, stuck_too):
        error = failure({"sasl.oauthbearer.token.callback": callback})
        assert isinstance(error, NetworkError)
        assert str(error) == "there was no token within 0.1 s"
    assert time.monotonic() - began < 50
    over.set()


def test_a_process_ends_without_waiting_for_it() -> None:
    program = (
        "import asyncio, time\nfrom headrace.security import tokens\ntokens._TOKEN_WITHIN = 0.1\n"
        "ask = tokens.in_time(tokens.from_callback(lambda: time.sleep(200), {}))\n"
        "try: asyncio.run(ask())\nexcept Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "there was no token within 0.1 s\n"


@pytest.fixture
def dripping() -> Iterator[Callable[[bytes], str]]:
    """Serves what it is given, and then a byte now and then, for as long as somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(head: bytes) -> None:
            link, _ = server.accept()
            with link:
                link.recv(65536)
                link.sendall(head)
                try:
                    while True:
                        link.sendall(b" ")
                        time.sleep(0.02)
                except OSError:
                    return

        def start(head: bytes) -> str:
            threading.Thread(target=serve, args=(head,), daemon=True).start()
            return f"http://127.0.0.1:{server.getsockname()[1]}/token"

        yield start


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
def test_an_answer_that_drips(dripping: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, status: bytes) -> None:
    def scenario(scale: float) -> None:
        monkeypatch.setattr(tokens, "_WITHIN", 0.2 * scale)
        url = dripping(b"HTTP/1.1 " + status + b"\r\nContent-Length: 10000\r\n\r\n")
        began = time.monotonic()
        error = failure(
            {
                "sasl.oauthbearer.token.endpoint.url": url,
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "hush",
            }
        )
        assert time.monotonic() - began < 20
        said = "its answer does not end in time" if status.startswith(b"200") else "answered 400"
        assert said in str(error)

    patiently(scenario)
