"""`headrace lag --serve`: the lag of all groups as Prometheus metrics, until Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import click

from ..errors import HeadraceError
from .connection_options import Settings

DEFAULT_INTERVAL = 15.0
_LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]*|\[[0-9A-Fa-f:.%\w]+\]):)?(?P<port>[0-9]{1,5})")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AddressType(click.ParamType):  # type: ignore[type-arg]  # it has no parameter before click 8.4
    """`[HOST]:PORT`. Without a host it is the loopback address: names of groups and topics are not for everybody."""

    name = "address"

    def convert(self, value: str | Address, param: click.Parameter | None, context: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        found = _ADDRESS.fullmatch(value.strip())
        if found is None or int(found["port"]) > 65_535:
            self.fail(f"{value!r} is not an address such as :9308, 0.0.0.0:9308 or [::1]:9308", param, context)
        return Address((found["host"] or _LOOPBACK).strip("[]"), int(found["port"]))


def pattern_of(texts: Collection[str], option: str) -> re.Pattern[str] | None:
    """One regular expression that matches whatever one of these matches; None if there are none."""
    for text in texts:
        try:
            re.compile(text)
        except re.error as error:
            raise click.BadParameter(f"{text!r} is not a regular expression: {error}", param_hint=option) from None
    return re.compile("|".join(f"(?:{text})" for text in texts)) if texts else None


def serve(
    settings: Settings,
    address: Address,
    groups: re.Pattern[str] | None,
    topics: re.Pattern[str] | None,
    checkpoint: Path | None,
    *,
    interval: float,
    timeout: float,
) -> None:
    """Ends by a signal. Raises HeadraceError if the address cannot be used, or the brokers reject the login."""
    # A pass makes a hundred thousand objects without cycles, and the next one frees them. The garbage collector would
    # visit them all the time: with its default settings it takes a third of the CPU time.
    usual = gc.get_threshold()
    gc.set_threshold(100_000, 20, 50)
    try:
        asyncio.run(_serve(settings, address, groups, topics, checkpoint, interval, timeout))
    finally:
        gc.set_threshold(*usual)


async def _serve(
    settings: Settings,
    address: Address,
    groups: re.Pattern[str] | None,
    topics: re.Pattern[str] | None,
    checkpoint: Path | None,
    interval: float,
    timeout: float,
) -> None:
    from ..monitor.collector import Scope
    from ..monitor.exporter import Exporter

    scope = Scope(groups, topics, () if checkpoint is None else (checkpoint,))
    try:
        exporter = await Exporter(settings, *address, scope, interval=interval, timeout=timeout).__aenter__()
    except OSError as error:
        reason = error.strerror or str(error)
        raise HeadraceError(f"cannot serve at {address}: {reason}. Choose another address with --serve") from None
    try:
        click.echo(f"metrics: http://{Address(*exporter.address)}/metrics, every {interval:g} s. Ctrl-C ends it.")
        done = 0
        while True:
            status = await exporter.wait(done, 60.0)
            if status.is_final:
                raise HeadraceError(status.error)
            # Other errors are temporary: brokers may start after their exporter. Metrics and the log report them.
            done = status.passes + status.failures
    finally:
        await exporter.__aexit__()
