"""The options that say which cluster: -b, -C, -F, --timeout. The same for every command that speaks to one.

-b given               that one
HEADRACE_BOOTSTRAP     that one
`headrace up` runs     that one
else                   an error that says what to do
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from headrace.local.background import read_status

Command = Callable[..., Any]
Settings = dict[str, Any]


def name_and_value(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint=option)
    return name.strip(), value.strip()


def read_properties(path: Path) -> dict[str, str]:
    """A file of NAME=VALUE lines, as Kafka's tools take it; # begins a comment line."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}", param_hint="-F") from None
    return dict(name_and_value(line, f"-F {path}") for line in lines if line and line[0] not in "#!")


def bootstrap_servers(given: str | None) -> str:
    """Raises UsageError if there is nothing to connect to."""
    servers = given or read_status().bootstrap_servers
    if not servers:
        raise click.UsageError(
            "no broker: name one with -b host:port (or in HEADRACE_BOOTSTRAP), or start one here with `headrace up`"
        )
    return servers


def cluster_options(command: Command) -> Command:
    """Adds them. The command gets one mapping, `settings`, with Kafka's names."""

    @click.option(
        "-b",
        "--bootstrap-servers",
        "servers",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT,…",
        help="Brokers to ask first.  [default: what `headrace up` runs]",
    )
    @click.option("-C", "--config", "given", multiple=True, metavar="NAME=VALUE", help="A setting of the client.")
    @click.option(
        "-F",
        "--config-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings of the client, a line each. Passwords belong there and not on the command line.",
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(0.1, 3600),
        default=10.0,
        show_default=True,
        help="Seconds to wait for the cluster.",
    )
    @functools.wraps(command)
    def with_settings(
        *args: Any,
        servers: str | None,
        given: tuple[str, ...],
        config_file: Path | None,
        timeout: float,
        **rest: Any,
    ) -> Any:
        settings: Settings = read_properties(config_file) if config_file else {}
        settings.update(name_and_value(text, "-C") for text in given)
        named = settings.pop("bootstrap.servers", None)
        settings["bootstrap.servers"] = bootstrap_servers(servers or named)
        return command(*args, settings=settings, timeout=timeout, **rest)

    return with_settings


def for_asking(settings: Mapping[str, Any], timeout: float) -> Settings:
    """The settings of a client that asks a few questions within the time that the user wants to wait."""
    return {"client.id": "headrace-cli", **settings, "default.api.timeout.ms": max(1, round(timeout * 1000))}


def format_option(*choices: str) -> Callable[[Command], Command]:
    return click.option(
        "--format",
        "form",
        type=click.Choice(choices or ["table", "json"]),
        default=choices[0] if choices else "table",
        show_default=True,
    )
