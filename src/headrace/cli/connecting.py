"""The options that say which cluster: -b, -C, -F, --timeout. The same for every command that speaks to one.

-b given                        that one
HEADRACE_BOOTSTRAP              that one
bootstrap.servers in -C or -F   that one
`headrace up` runs              that one, with the settings of its client if it is secured
else                            an error that says what to do
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from headrace.local.background import read_status

from .properties import parse_properties

Command = Callable[..., Any]
Settings = dict[str, Any]


def name_and_value(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # What follows the name may be a password.
        word = re.split(r"[^\w.\-]", text.strip(), maxsplit=1)[0]
        raise click.BadParameter(f"{word or '…'} is not of the form NAME=VALUE", param_hint=option)
    return name.strip(), value.strip()


def read_properties(path: Path) -> dict[str, str]:
    """A properties file, as Kafka's tools take it. Errors name the line, and say nothing of what is in it."""
    try:
        return parse_properties(path.read_text())
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint="-F") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is not text in UTF-8", param_hint="-F") from None
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="-F") from None


def of_local_cluster(given: Settings) -> Settings:
    """What is given, with the address of the cluster that `headrace up` runs, and with how to get in if that is secured
    and nothing is given about it. Raises UsageError if there is none."""
    status = read_status()
    if not status.bootstrap_servers:
        raise click.UsageError(
            "no broker: name one with -b host:port (or in HEADRACE_BOOTSTRAP), or start one here with `headrace up`"
        )
    knows_how = any(name.startswith(("security.", "sasl.", "ssl.")) for name in given)
    own = read_properties(Path(status.client_properties)) if status.client_properties and not knows_how else {}
    return {**own, **given, "bootstrap.servers": status.bootstrap_servers}


def of_a_cluster(settings: Settings) -> Settings:
    """What is given if it names a cluster, else that of `headrace up`. Raises UsageError if there is none. Commands
    call it when they have checked their other options, so that those mistakes are reported first."""
    return settings if settings.get("bootstrap.servers") else of_local_cluster(settings)


def client_options(
    *, default_servers: str = "what `headrace up` runs", reads_environment: bool = True
) -> Callable[[Command], Command]:
    """Adds -b, -C and -F. The command gets one mapping, `settings`, with Kafka's names: those of the file, with those
    of -C over them, and -b over both."""

    def add(command: Command) -> Command:
        @click.option(
            "-b",
            "--bootstrap-servers",
            "servers",
            envvar="HEADRACE_BOOTSTRAP" if reads_environment else None,
            metavar="HOST:PORT,…",
            help=f"Brokers to connect to first.  [default: {default_servers}]",
        )
        @click.option("-C", "--config", "given", multiple=True, metavar="NAME=VALUE", help="A setting of the client.")
        @click.option(
            "-F",
            "--config-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Settings of the client: a properties file. Passwords belong there and not on the command line.",
        )
        @functools.wraps(command)
        def with_settings(
            *args: Any, servers: str | None, given: tuple[str, ...], config_file: Path | None, **rest: Any
        ) -> Any:
            settings: Settings = read_properties(config_file) if config_file else {}
            settings.update(name_and_value(text, "-C") for text in given)
            if servers:
                settings["bootstrap.servers"] = servers
            return command(*args, settings=settings, **rest)

        return with_settings

    return add


def cluster_options(command: Command) -> Command:
    """The same, and --timeout, for a command that speaks to a cluster: see `of_a_cluster`."""
    timeout = click.option(
        "--timeout",
        type=click.FloatRange(0.1, 3600),
        default=10.0,
        show_default=True,
        help="Seconds to wait for the cluster.",
    )
    return client_options()(timeout(command))


def for_asking(settings: Mapping[str, Any], timeout: float) -> Settings:
    """The settings of a client that asks a few questions within the time that the user wants to wait."""
    return {"client.id": "headrace-cli", **settings, "default.api.timeout.ms": max(1, round(timeout * 1000))}


def try_the_door(settings: Mapping[str, Any], timeout: float) -> None:
    """By a client of our own, before another one is used: it says what is wrong, and does not try a wrong password
    again and again. Raises whatever keeps it out."""
    asyncio.run(_ask_for_nothing(for_asking(settings, timeout)))


async def _ask_for_nothing(settings: Settings) -> None:
    from headrace.aio.admin import AsyncAdmin

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
