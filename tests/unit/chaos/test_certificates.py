"""Certificates of the chaos runs: clients with the files of before a renewal still connect, and new ones do."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.certificates import Certificates
from chaos.proxy import Proxy


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@pytest.fixture
def proxy(certificates: Certificates, echo: str) -> Iterator[Proxy]:
    with Proxy(echo, certificates.context()) as proxy:
        yield proxy


def client_context(certificates: Certificates) -> ssl.SSLContext:
    settings = certificates.client_settings
    context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
    context.load_cert_chain(settings["ssl.certificate.location"])
    return context


def connected(proxy: Proxy, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    try:
        return context.wrap_socket(plain, server_hostname="127.0.0.1")
    except BaseException:
        plain.close()
        raise


def echoes(client: ssl.SSLSocket) -> bool:
    """False if the other side has closed the connection, or rejects this one's certificate."""
    try:
        client.sendall(b"hello")
        return client.recv(100) == b"hello"
    except OSError:  # ssl.SSLError is one
        return False


def test_a_renewal_closes_connections_and_replaces_the_certificate(certificates: Certificates, proxy: Proxy) -> None:
    with connected(proxy, client_context(certificates)) as before:
        assert echoes(before)
        old = before.getpeercert(binary_form=True)
        certificates.renew()
        proxy.renew(certificates.context())
        assert not echoes(before)
    with connected(proxy, client_context(certificates)) as after:
        assert echoes(after)
        assert after.getpeercert(binary_form=True) != old


def test_files_from_before_the_renewal_before_last_are_rejected(certificates: Certificates, proxy: Proxy) -> None:
    identity = ssl.create_default_context()
    identity.load_cert_chain(certificates.client_settings["ssl.certificate.location"])
    certificates.renew()
    proxy.renew(certificates.context())
    identity.load_verify_locations(certificates.client_settings["ssl.ca.location"])
    with connected(proxy, identity) as client:  # the former CA is still trusted
        assert echoes(client)
    certificates.renew()
    proxy.renew(certificates.context())
    identity.load_verify_locations(certificates.client_settings["ssl.ca.location"])
    with connected(proxy, identity) as client:  # TLS 1.3 reports a rejected certificate with the first read
        assert not echoes(client)


def test_clients_without_a_certificate_are_rejected(certificates: Certificates, proxy: Proxy) -> None:
    anonymous = ssl.create_default_context(cafile=certificates.client_settings["ssl.ca.location"])
    with connected(proxy, anonymous) as client:
        assert not echoes(client)
