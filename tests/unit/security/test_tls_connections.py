"""TLS connections: valid, invalid, expired and renewed certificates, and servers that fail in the handshake."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from headrace._net.connection import Connection
from headrace._protocol.messages import FETCH, METADATA
from headrace._security.access import Access
from headrace.errors import AuthenticationError, HeadraceError, NetworkError, ProtocolError
from headrace.local.certificates import Authority, Signed
from support.brokers.fake_broker import FakeBroker, Link, frame, run
from support.brokers.fake_connections import ALL_TOPICS, NO_FETCH, config, failure, metadata, records, records_in
from support.brokers.fake_tls_broker import TlsBroker, write

AUTHORITY = Authority()
GOOD = AUTHORITY.issue("broker", ["127.0.0.1", "localhost"])
A_DAY = datetime.timedelta(days=1)


async def connect(broker: FakeBroker, host: str | None = None, **settings: Any) -> tuple[Connection, Link]:
    secured = config(security_protocol="SSL", **settings)
    opening = asyncio.create_task(Connection.open(host or broker.host, broker.port, secured, 30.0))
    link = asyncio.create_task(broker.accept())
    await asyncio.wait([opening, link], return_when=asyncio.FIRST_COMPLETED)
    if not link.done():
        link.cancel()
        await opening
    await (await link).negotiate()
    return await opening, await link


async def refused(broker: FakeBroker, host: str | None = None, **settings: Any) -> HeadraceError:
    secured = config(security_protocol="SSL", **settings)
    return await failure(Connection.open(host or broker.host, broker.port, secured, 30.0))


def trusting(where: Path, authority: Authority = AUTHORITY) -> dict[str, str]:
    return {"ssl_ca_location": write(where / "ca.pem", authority.pem)}


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3", "TLSv1.2,TLSv1.3"])
def test_requests_and_responses_of_any_size_pass_tls(tmp_path: Path, versions: str) -> None:
    async def main() -> None:
        async with TlsBroker(tmp_path, GOOD) as broker:
            connection, link = await connect(broker, **trusting(tmp_path), ssl_enabled_protocols=versions)
            connection.receive_on_a_thread()  # must have no effect with TLS
            for size in (0, 65_533, 5_000_000):
                call = connection.start(FETCH, NO_FETCH)
                request = await link.receive()
                data = bytes(range(256)) * (size // 256 + 1)
                await link.send(frame(request.correlation_id, records(data[:size])))
                assert records_in(await call) == data[:size]
            calls = [connection.start(METADATA, ALL_TOPICS) for _ in range(5)]
            for number, _ in enumerate(calls):
                await link.reply(await link.receive(), metadata(f"cluster {number}"))
            assert [(await call).body.cluster_id for call in calls] == [f"cluster {number}" for number in range(5)]
            connection.close()
            assert await link.is_closed_by_client()

    run(main())


@pytest.mark.parametrize(
    ("signed", "host", "said"),
    [
        pytest.param(AUTHORITY.issue("b", ["127.0.0.1"], valid_for=-A_DAY), None, "expired", id="expired"),
        pytest.param(AUTHORITY.issue("b", ["elsewhere.example"]), None, "IP address mismatch", id="another host"),
        pytest.param(AUTHORITY.issue("b", ["127.0.0.1"]), "localhost", "Hostname mismatch", id="another name"),
        pytest.param(Authority().issue("b", ["127.0.0.1"]), None, "ssl.ca.location", id="unknown CA"),
        pytest.param(AUTHORITY.issue("b", ["127.0.0.1"], client=True), None, "purpose", id="a client's"),
    ],
)
def test_a_wrong_broker_certificate_is_refused(tmp_path: Path, signed: Signed, host: str | None, said: str) -> None:
    async def main() -> None:
        async with TlsBroker(tmp_path, signed) as broker:
            error = await refused(broker, host, **trusting(tmp_path))
            assert isinstance(error, AuthenticationError)
            assert (error.step, error.retriable, error.is_final) == ("tls", False, False)
            assert f"the certificate of {host or broker.host}:{broker.port} was rejected" in str(error)
            assert said in str(error)

    run(main())


@pytest.mark.parametrize(
    "loose",
    [{"ssl_endpoint_identification_algorithm": ""}, {"enable_ssl_certificate_verification": False}],
    ids=["names unchecked", "nothing checked"],
)
def test_tls_checks_of_names_and_certificates_can_be_switched_off(tmp_path: Path, loose: dict[str, Any]) -> None:
    async def main() -> None:
        async with TlsBroker(tmp_path, AUTHORITY.issue("b", ["elsewhere.example"])) as broker:
            connection, _ = await connect(broker, **trusting(tmp_path), **loose)
            connection.close()
        async with TlsBroker(tmp_path, Authority().issue("b", ["127.0.0.1"])) as broker:
            if "enable_ssl_certificate_verification" in loose:
                connection, _ = await connect(broker, **trusting(tmp_path), **loose)
                connection.close()
            else:
                assert isinstance(await refused(broker, **trusting(tmp_path), **loose), AuthenticationError)

    run(main())


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
def test_mutual_tls_needs_a_certificate_that_the_broker_trusts(tmp_path: Path, versions: str) -> None:
    async def main() -> None:
        own = AUTHORITY.issue("me", client=True)
        stranger = Authority("another").issue("me", client=True)
        settings = {**trusting(tmp_path), "ssl_enabled_protocols": versions}
        async with TlsBroker(tmp_path, GOOD, trusts=AUTHORITY) as broker:
            where = write(tmp_path / "own.pem", own.key + own.certificates)
            connection, link = await connect(broker, **settings, ssl_certificate_location=where)
            shown = link._writer.transport.get_extra_info("peercert")
            assert shown["subject"] == ((("commonName", "me"),),)
            connection.close()
            by_text = {"ssl_keystore_certificate_chain": own.certificates, "ssl_keystore_key": own.key}
            connection, _ = await connect(broker, **settings, **by_text)
            connection.close()
            where = write(tmp_path / "stranger.pem", stranger.key + stranger.certificates)
            for wrong in ({}, {"ssl_certificate_location": where}):
                # Unlike a broker, this server disconnects without an alert.
                assert isinstance(await refused(broker, **settings, **wrong), (AuthenticationError, NetworkError))

    run(main())


def test_a_ca_file_renewed_on_disk_is_loaded_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next connection of a running client uses the new file."""

    async def main() -> None:
        later = Authority()
        secured = config(security_protocol="SSL", **trusting(tmp_path))
        access = Access(secured)

        async def try_once(broker: FakeBroker) -> None:
            opening = asyncio.create_task(Connection.open(broker.host, broker.port, secured, 30.0, access))
            accepting = asyncio.create_task(broker.accept())
            await asyncio.wait([opening, accepting], return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                await accepting.result().negotiate()
            accepting.cancel()
            (await opening).close()

        async with TlsBroker(tmp_path, GOOD) as broker:
            await try_once(broker)
        async with TlsBroker(tmp_path, later.issue("b", ["127.0.0.1"])) as broker:
            assert isinstance(await failure(try_once(broker)), AuthenticationError)
            write(tmp_path / "ca.pem", "-----BEGIN CERTIFICATE-----\nhalf writ")
            assert isinstance(await failure(try_once(broker)), AuthenticationError)
            assert "cannot be used" in caplog.text
            write(tmp_path / "ca.pem", later.pem)
            await try_once(broker)

    run(main())


# -- failed handshakes and corrupted streams -------------------------------------------------------------------------


async def serve(answer: bytes, after: int = 1) -> asyncio.Server:
    """A server that reads once, sends `answer` and disconnects."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(serve_one, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param(b"", NetworkError, id="disconnects"),
        pytest.param(b"\x16\x03\x03\x40\x00" + b"\x02" * 50, NetworkError, id="a torn record"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError, id="a web server"),
        pytest.param(b"\0\0\0\x08\0\0\0\x01\0\x23\0\0", ProtocolError, id="a broker without TLS"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x28", AuthenticationError, id="an alert"),
        pytest.param(b"\x16\x03\x03\x00\x04\x0e\0\0\0", HeadraceError, id="the wrong message"),
    ],
)
def test_a_failed_tls_handshake_is_an_error_that_names_the_server(
    tmp_path: Path, answer: bytes, kind: type[HeadraceError]
) -> None:
    async def main() -> None:
        server = await serve(answer)
        port = server.sockets[0].getsockname()[1]
        settings = config(security_protocol="SSL", **trusting(tmp_path))
        error = await failure(Connection.open("127.0.0.1", port, settings, 30.0))
        assert isinstance(error, kind), error
        assert f"127.0.0.1:{port}" in str(error)
        server.close()
        await server.wait_closed()

    run(main())


def test_a_tls_handshake_that_never_ends_is_a_timeout(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            settings = config(security_protocol="SSL", **trusting(tmp_path))
            error = await failure(Connection.open("127.0.0.1", silent.getsockname()[1], settings, 0.2))
            assert isinstance(error, NetworkError)
            assert "no response in 0.2 s" in str(error)

    run(main())


@pytest.mark.parametrize("torn", [b"\x17\x03\x03\x00\x20" + b"x" * 32, b"\x17\x03\x03\xff\xff", b"plain text"])
def test_a_corrupted_tls_stream_fails_all_calls_in_flight(tmp_path: Path, torn: bytes) -> None:
    """An attacker injected bytes, or the broker is broken."""

    async def main() -> None:
        async with TlsBroker(tmp_path, GOOD) as broker:
            connection, link = await connect(broker, **trusting(tmp_path))
            calls = [connection.start(METADATA, ALL_TOPICS) for _ in range(3)]
            raw = link._writer.transport.get_extra_info("socket")
            with socket.socket(fileno=os.dup(raw.fileno())) as beside:
                beside.setblocking(True)
                beside.sendall(torn)
            if torn.endswith(b"\xff"):
                link._writer.transport.abort()
            errors = [await failure(call) for call in calls]
            assert all(isinstance(error, NetworkError) for error in errors)
            assert not connection.is_open

    run(main())


def test_tls_verifies_with_the_system_s_certificates_by_default(tmp_path: Path) -> None:
    async def main() -> None:
        async with TlsBroker(tmp_path, GOOD) as broker:
            error = await refused(broker)
            assert isinstance(error, AuthenticationError)

    run(main())
    assert Access(config(security_protocol="SSL")).context().verify_mode is ssl.CERT_REQUIRED  # type: ignore[union-attr]
