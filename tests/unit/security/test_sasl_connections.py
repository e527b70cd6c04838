"""SASL logins against a scripted broker: the steps, rejections, renewals, and dishonest brokers."""

from __future__ import annotations

import asyncio
import base64
import datetime
import struct
from typing import Any

import pytest

from headrace._net.connection import Connection
from headrace._protocol.messages import METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from headrace._security.access import Access
from headrace.errors import AuthenticationError, HeadraceError, NetworkError, ProtocolError
from support.brokers.fake_broker import FakeBroker, Link, Request, answer, run, sized
from support.brokers.fake_connections import ALL_TOPICS, config, failure, metadata
from support.harness.retries import patiently

PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "me",
    "sasl_password": "s3cret-of-me",
}


def opening(broker: FakeBroker, **settings: Any) -> asyncio.Task[Connection]:
    made = config(**{**PLAIN, **settings})
    return asyncio.create_task(Connection.open(broker.host, broker.port, made, 30.0))


async def negotiated(broker: FakeBroker, **settings: Any) -> tuple[asyncio.Task[Connection], Link]:
    """A connection that is being opened, and the broker's end of it. The next request is the SASL handshake."""
    task = opening(broker, **settings)
    link = await broker.accept()
    await link.negotiate()
    return task, link


async def asked(link: Link, api: Api) -> Request:
    request = await link.receive()
    assert request.api_key == api.key
    return request


async def let_in(link: Link, lifetime: int = 0, said: bytes = b"") -> None:
    """Accept a PLAIN login."""
    await handshake(link)
    request = await asked(link, SASL_AUTHENTICATE)
    assert request.body.auth_bytes == b"\0me\0s3cret-of-me"
    await authenticate(link, request, lifetime=lifetime, said=said)


async def handshake(link: Link, code: int = 0, offered: tuple[str, ...] = ("PLAIN",)) -> None:
    request = await asked(link, SASL_HANDSHAKE)
    await link.reply(request, answer(SASL_HANDSHAKE, 1, error_code=code, mechanisms=offered))


async def authenticate(
    link: Link, request: Request, code: int = 0, message: str | None = None, said: bytes = b"", lifetime: int = 0
) -> None:
    fields = {
        "error_code": code,
        "error_message": message,
        "auth_bytes": said,
        "session_lifetime": datetime.timedelta(milliseconds=lifetime),
    }
    await link.reply(request, answer(SASL_AUTHENTICATE, request.version, **fields))


def test_a_login_has_handshake_authentication_and_then_requests() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await let_in(link)
            connection = await task
            call = connection.start(METADATA, ALL_TOPICS)
            await link.reply(await asked(link, METADATA), metadata())
            assert (await call).body.cluster_id == "c"
            connection.close()

    run(main())


@pytest.mark.parametrize(
    ("code", "offered", "said"),
    [
        (33, ("GSSAPI", "OAUTHBEARER"), "the broker does not offer this mechanism. It offers: GSSAPI, OAUTHBEARER"),
        (33, (), "the broker does not offer this mechanism. It offers: none"),
        (34, (), "the broker does not expect a login on this port: see security.protocol"),
        (999, (), "UNKNOWN_ERROR_999"),
    ],
)
def test_the_error_of_a_rejected_handshake_says_why(code: int, offered: tuple[str, ...], said: str) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await handshake(link, code, offered)
            error = await failure(task)
            assert isinstance(error, AuthenticationError)
            assert (error.step, error.is_final) == ("handshake", True)
            assert str(error) == f"SASL handshake with PLAIN at {broker.name} failed: {said}"
            assert await link.is_closed_by_client()

    run(main())


def test_the_error_of_a_rejected_login_is_short_and_without_the_secret() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await handshake(link)
            await authenticate(link, await asked(link, SASL_AUTHENTICATE), 58, "no\x1b[31m " + "x" * 9999)
            error = await failure(task)
            assert isinstance(error, AuthenticationError)
            assert error.step == "authenticate"
            assert "SASL_AUTHENTICATION_FAILED (" not in str(error)
            assert len(str(error)) < 500
            assert str(error).isprintable()
            assert "s3cret-of-me" not in str(error)

    run(main())


# -- renewal -----------------------------------------------------------------------------------------------------------


def test_requests_are_held_back_while_the_login_is_renewed() -> None:
    async def main(scale: float) -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await let_in(link, lifetime=round(1300 * scale))
            connection = await task
            before = connection.start(METADATA, ALL_TOPICS)  # the broker responds after the renewal has started
            parked = await asked(link, METADATA)
            request = await asked(link, SASL_HANDSHAKE)
            during = [connection.start(METADATA, ALL_TOPICS) for _ in range(3)]
            assert connection.in_flight == 1 + 1 + 3
            await link.reply(parked, metadata("before"))
            await link.reply(request, answer(SASL_HANDSHAKE, 1, error_code=0, mechanisms=("PLAIN",)))
            login = await asked(link, SASL_AUTHENTICATE)  # before the three requests
            await authenticate(link, login, lifetime=60_000)
            for number, _ in enumerate(during):
                await link.reply(await asked(link, METADATA), metadata(f"held {number}"))
            assert (await before).body.cluster_id == "before"
            assert [(await call).body.cluster_id for call in during] == ["held 0", "held 1", "held 2"]
            assert connection.is_open
            connection.close()

    patiently(lambda scale: run(main(scale)))


def test_a_rejected_login_renewal_fails_all_calls() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await let_in(link, lifetime=1300)
            connection = await task
            await handshake(link)
            held = connection.start(METADATA, ALL_TOPICS)
            await authenticate(link, await asked(link, SASL_AUTHENTICATE), 58, "revoked")
            for call in (held, connection.call(METADATA, ALL_TOPICS)):
                error = await failure(call)
                assert isinstance(error if call is held else error.__cause__, AuthenticationError)
            assert isinstance(connection.failure, AuthenticationError)
            assert await link.is_closed_by_client()

    run(main())


def test_a_closed_connection_cancels_its_login_renewal() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await let_in(link, lifetime=1300)
            connection = await task
            connection.close()
            assert await link.is_closed_by_client()
            assert connection._authentication is not None
            assert connection._authentication._timer is not None
            assert connection._authentication._timer.cancelled()

    run(main())


# -- dishonest brokers -------------------------------------------------------------------------------------------------


def test_repeated_sasl_challenges_are_refused() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            settings = {"sasl_mechanism": "OAUTHBEARER", "sasl_username": None, "sasl_password": None}
            task, link = await negotiated(broker, **settings, sasl_oauthbearer_token_callback=lambda: "token")
            await handshake(link)
            for _ in range(2):
                request = await asked(link, SASL_AUTHENTICATE)
                await authenticate(link, request, said=b'{"status":"invalid_token"}')
            error = await failure(task)
            assert isinstance(error, AuthenticationError)
            assert await link.is_closed_by_client()

    run(main())


def test_a_scram_server_that_proves_nothing_is_refused() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker, sasl_mechanism="SCRAM-SHA-256")
            await handshake(link)
            request = await asked(link, SASL_AUTHENTICATE)
            nonce = request.body.auth_bytes.decode().partition("r=")[2]
            salt = base64.b64encode(b"salt").decode()
            await authenticate(link, request, said=f"r={nonce}x,s={salt},i=4096".encode())
            request = await asked(link, SASL_AUTHENTICATE)
            assert b"s3cret" not in request.body.auth_bytes
            await authenticate(link, request, said=b"v=" + base64.b64encode(b"y" * 32))
            error = await failure(task)
            assert isinstance(error, AuthenticationError)
            assert "it is not a real broker" in str(error)
            assert await link.is_closed_by_client()

    run(main())


@pytest.mark.parametrize("lifetime", [2**63 - 1, -(2**63), -1, 2**53])
def test_an_impossible_login_lifetime_is_refused_or_ignored(lifetime: int) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await handshake(link)
            request = await asked(link, SASL_AUTHENTICATE)
            body = b"\0" + struct.pack(">hb", 0, 0) + b"\x01" + struct.pack(">q", lifetime) + b"\0"
            await link.send(sized(struct.pack(">i", request.correlation_id) + body))
            try:
                connection = await task
            except ProtocolError:
                assert await link.is_closed_by_client()
                return
            call = connection.start(METADATA, ALL_TOPICS)
            await link.reply(await asked(link, METADATA), metadata())
            await call
            connection.close()

    run(main())


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        pytest.param(struct.pack(">i", 2 * 2**20), ProtocolError, id="a response of megabytes"),
        pytest.param(struct.pack(">i", -1), ProtocolError, id="a negative length"),
        pytest.param(struct.pack(">iih", 6, 77, 0), ProtocolError, id="a response to another request"),
        pytest.param(struct.pack(">iihi", 10, 2, 0, 2**30), ProtocolError, id="a list of a billion"),
        pytest.param(b"", NetworkError, id="disconnects"),
    ],
)
def test_a_malformed_handshake_response_closes_the_connection(sent: bytes, kind: type[HeadraceError]) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await asked(link, SASL_HANDSHAKE)
            await link.send(sent)
            if not sent:
                link.close()
            assert isinstance(await failure(task), kind)
            assert await link.is_closed_by_client()

    run(main())


OAUTH = {
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_username": None,
    "sasl_password": None,
    "sasl_oauthbearer_token_callback": lambda: TOKEN,
}
TOKEN = "t0ken-" + "x" * 1000


@pytest.mark.parametrize("said", [b"[" * 100_000, b'{"status":"' + b"y" * 10_000 + b'"}'], ids=["deep", "long"])
def test_an_unreadable_sasl_challenge_is_ignored_and_not_shown(said: bytes) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await let_in(link, said=said)  # PLAIN ignores it
            (await task).close()

            task, link = await negotiated(broker, **OAUTH)
            await handshake(link)
            await authenticate(link, await asked(link, SASL_AUTHENTICATE), said=said)
            await authenticate(link, await asked(link, SASL_AUTHENTICATE), 58)
            error = await failure(task)
            assert isinstance(error, AuthenticationError)
            assert str(error).endswith("failed: SASL_AUTHENTICATION_FAILED")

    run(main())


def test_an_error_hides_a_secret_that_the_broker_repeats() -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            for settings, secret in ((PLAIN, "s3cret-of-me"), (OAUTH, TOKEN), (OAUTH, TOKEN[:50])):
                for place in ("message", "challenge", "mechanisms"):
                    task, link = await negotiated(broker, **settings)
                    if place == "mechanisms":
                        await handshake(link, 33, (f"not {secret}",))
                    else:
                        await handshake(link)
                        request = await asked(link, SASL_AUTHENTICATE)
                        if place == "challenge" and settings is OAUTH:
                            await authenticate(link, request, said=f'{{"status":"not {secret}"}}'.encode())
                            request = await asked(link, SASL_AUTHENTICATE)
                        await authenticate(link, request, 58, f"not {secret}" if place == "message" else None)
                    error = await failure(task)
                    assert isinstance(error, AuthenticationError)
                    assert secret[:20] not in str(error)
                    if place != "challenge":
                        assert "(hidden because it contains the secret)" in str(error)

    run(main())


def test_an_unexpected_error_of_a_login_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        raise RecursionError("of the test")

    async def main() -> None:
        async with FakeBroker() as broker:
            task, link = await negotiated(broker)
            await let_in(link, lifetime=1200)
            connection = await task
            held = connection.start(METADATA, ALL_TOPICS)
            monkeypatch.setattr(Access, "exchange", broken)
            errors = [await failure(held)]  # raised by the renewal
            assert await link.is_closed_by_client()
            assert connection.failure is errors[0]
            task, link = await negotiated(broker)
            errors.append(await failure(task))
            assert await link.is_closed_by_client()
            for error in errors:
                assert isinstance(error.__cause__, RecursionError)
                assert str(error) == f"the connection to {broker.name} failed with an unexpected RecursionError"

    run(main())
