"""Certificates that are renewed while clients run. The proxies speak TLS with clients that have a certificate.

Each renewal has a new CA. As an operator would do it, the files of clients are replaced first, then the certificates
of the proxies, and the former CA stays trusted until the next renewal.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from headrace.local.certificates import Authority

_HOSTS = ("127.0.0.1", "localhost")


class Certificates:
    """Must be used by one thread at a time. The files are replaced as a whole, so clients may read them at any time."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._ca, self._client = directory / "ca.pem", directory / "client.pem"
        self._server = directory / "server.pem"
        self._authority = Authority()
        self._former = ""
        self._issue()

    @property
    def client_settings(self) -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._ca),
            "ssl.certificate.location": str(self._client),
        }

    def renew(self) -> None:
        self._former = self._authority.pem
        self._authority = Authority()
        self._issue()

    def context(self) -> ssl.SSLContext:
        """The TLS context of a proxy, with the current certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._server)
        context.load_verify_locations(self._ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _issue(self) -> None:
        server, client = self._authority.issue("proxy", _HOSTS), self._authority.issue("client", client=True)
        _replace(self._ca, self._authority.pem + self._former)
        _replace(self._client, client.key + client.certificates)
        _replace(self._server, server.key + server.certificates)


def _replace(file: Path, text: str) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(file)
