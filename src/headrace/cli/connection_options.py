"""The options that select a cluster: -b, -C, -F, --timeout. All commands that connect to a cluster have them.

The cluster is the first of these that is given:

    -b
    HEADRACE_BOOTSTRAP
    bootstrap.servers in -C or -F
    the cluster of `headrace up`, with its client settings if it is secured

Without any of them, the command fails with a usage error. HEADRACE_CONFIG_FILE names the file if -F does not.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ..local.background import read_status
from ..local.errors import LocalBrokerError
from .option_types import Seconds
from .properties import parse_properties

CONFIG_FILE = "HEADRACE_CONFIG_FILE"

Command = Callable[..., Any]
Settings = dict[str, Any]


def name_and_value(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # Do not show the text after the name: it may be a password.
        word = re.split(r"[^\w.\-]", text.strip(), maxsplit=1)[0]
        raise click.BadParameter(f"{word or '…'} is not of the form NAME=VALUE", param_hint=option)
    return name.strip(), value.strip()


def names_and_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """Of an option that may be repeated, but not with one name and different values."""
    found: dict[str, str] = {}
    for name, value in (name_and_value(text, option) for text in texts):
        if found.setdefault(name, value) != value:
            raise click.BadParameter(f"{name} is given more than once, with different values", param_hint=option)
    return found


def read_properties(path: Path) -> dict[str, str]:
    """Read a properties file, as Kafka's tools do. Errors give the line number but not its content."""
    try:
        return parse_properties(path.read_text())
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint="-F") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is not text in UTF-8", param_hint="-F") from None
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="-F") from None


def with_local_cluster(given: Settings) -> Settings:
    """The given settings with the address of the cluster of `headrace up`, and with its client settings if it is
    secured and no security settings are given. Raises UsageError if it is not running, and LocalBrokerError if it has
    crashed: connecting would only time out."""
    status = read_status()
    if status.state == "crashed":
        raise LocalBrokerError(
            f"the cluster of `headrace up` has crashed (log: {status.log}): `headrace up` restarts it, or name another "
            "one with -b"
        )
    if not status.bootstrap_servers:
        raise click.UsageError(
            "no broker: name one with -b host:port (or in HEADRACE_BOOTSTRAP), or start one here with `headrace up`"
        )
    has_security = any(name.startswith(("security.", "sasl.", "ssl.")) for name in given)
    own = read_properties(Path(status.client_properties)) if status.client_properties and not has_security else {}
    return {**own, **given, "bootstrap.servers": status.bootstrap_servers}


def with_cluster(settings: Settings) -> Settings:
    """The given settings if they name a cluster, else those for the cluster of `headrace up`. Raises UsageError if
    there is none. Commands call it after they have checked their other options, so that invalid options are reported
    first."""
    return settings if settings.get("bootstrap.servers") else with_local_cluster(settings)


def client_options(
    *, default_servers: str = "the cluster of `headrace up`", reads_environment: bool = True
) -> Callable[[Command], Command]:
    """Adds -b, -C and -F. The command receives one mapping, `settings`, with Kafka's names. -C overrides the file, and
    -b overrides both. `reads_environment`: whether HEADRACE_BOOTSTRAP and HEADRACE_CONFIG_FILE replace -b and -F."""

    def add(command: Command) -> Command:
        @click.option(
            "-b",
            "--bootstrap-servers",
            "servers",
            envvar="HEADRACE_BOOTSTRAP" if reads_environment else None,
            metavar="HOST:PORT,…",
            help=f"Brokers to connect to first.  [default: {default_servers}]",
        )
        @click.option("-C", "--config", "given", multiple=True, metavar="NAME=VALUE", help="A client setting.")
        @click.option(
            "-F",
            "--config-file",
            envvar=CONFIG_FILE if reads_environment else None,
            show_envvar=reads_environment,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A properties file with client settings. Put passwords there, not on the command line.",
        )
        @functools.wraps(command)
        def with_settings(
            *args: Any, servers: str | None, given: tuple[str, ...], config_file: Path | None, **rest: Any
        ) -> Any:
            settings: Settings = read_properties(config_file) if config_file else {}
            settings.update(names_and_values(given, "-C"))
            if servers:
                settings["bootstrap.servers"] = servers
            return command(*args, settings=settings, **rest)

        return with_settings

    return add


def cluster_options(command: Command) -> Command:
    """Adds -b, -C, -F and --timeout, for a command that connects to a cluster: see `with_cluster`."""
    timeout = click.option(
        "--timeout",
        type=Seconds(0.1, 3600),
        default=10.0,
        show_default=True,
        help="Seconds to wait for the cluster.",
    )
    return client_options()(timeout(command))


def client_settings(settings: Mapping[str, Any], timeout: float) -> Settings:
    """The settings of a client that sends a few requests within `timeout` seconds."""
    return {"client.id": "headrace-cli", **settings, "default.api.timeout.ms": max(1, round(timeout * 1000))}


def check_connection(settings: Mapping[str, Any], timeout: float) -> None:
    """Connect with headrace's own client before another client is used: its errors say what is wrong, and it does not
    retry a wrong password. Raises HeadraceError."""
    asyncio.run(_fetch_metadata(client_settings(settings, timeout)))


async def _fetch_metadata(settings: Settings) -> None:
    from .._aio.admin import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        await admin.topics(())


def format_option(*choices: str) -> Callable[[Command], Command]:
    return click.option(
        "--format",
        "form",
        type=click.Choice(choices or ["table", "json"]),
        default=choices[0] if choices else "table",
        show_default=True,
    )
