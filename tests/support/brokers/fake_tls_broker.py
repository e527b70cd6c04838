"""A scripted broker with TLS and any certificate."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Self

from headrace.local.certificates import Authority, Signed
from support.brokers.fake_broker import FakeBroker


class TlsBroker(FakeBroker):
    """`FakeBroker` with TLS. `trusts` is the CA of clients that must present a certificate."""

    def __init__(self, where: Path, signed: Signed, trusts: Authority | None = None) -> None:
        super().__init__()
        where.mkdir(exist_ok=True)
        (where / "server.pem").write_text(signed.key + signed.certificates)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(where / "server.pem")
        if trusts is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.load_verify_locations(cadata=trusts.pem)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._on_connect, "127.0.0.1", 0, ssl=self.context)
        self.host, self.port = self._server.sockets[0].getsockname()
        return self


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
