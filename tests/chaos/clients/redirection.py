"""Connect to the proxies instead of the brokers: clients know the addresses that brokers advertise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace._net.connection import Connection


def redirect(ports: Mapping[str, int]) -> None:
    """`ports` has the port of each proxy by that of its broker, as text."""
    connect: Any = Connection.open

    async def open_elsewhere(host: str, port: int, *args: Any) -> Connection:
        found: Connection = await connect(host, ports.get(str(port), port), *args)
        return found

    Connection.open = open_elsewhere  # type: ignore[assignment, method-assign]
