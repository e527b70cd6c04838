"""`headrace ui`: serves a live page of the cluster to a browser. Other commands offer it while they run, with --ui.

The secrets come from the environment or a prompt, or are generated here. They never come from the command line, where
other users see them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import HeadraceError
from .commands import command
from .connection_options import Command, Settings, client_settings, cluster_options, with_cluster
from .formatting import say
from .option_types import Seconds, WholeNumber

if TYPE_CHECKING:
    from ..formats import SchemaRegistry
    from ..ui.activity import Activity

_PASSWORD, _TOKEN = "HEADRACE_UI_PASSWORD", "HEADRACE_UI_TOKEN"
_ASK_WITHIN = 5.0


def check_packages() -> None:
    """Raises HeadraceError if the packages of the page are not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise HeadraceError(f"the page needs {error.name}: pip install 'headrace[ui]'") from None


def page_options(command: Command) -> Command:
    """Adds --ui and --ui-port: the command receives `shows_page` and `page_port`."""
    flag = click.option("--ui", "shows_page", is_flag=True, help="Serve a live page while the command runs.")
    port = click.option(
        "--ui-port",
        "page_port",
        type=WholeNumber(0, 65535),
        default=8080,
        show_default=True,
        help="Port of the page. 0: a free port.",
    )
    return flag(port(command))


@contextlib.contextmanager
def page_beside(
    settings: Settings, port: int, activity: Activity, interval: float = 1.0, checkpoints: tuple[Path, ...] = ()
) -> Iterator[None]:
    """Serve the page on this machine, with what the command does, until the context ends."""
    from ..ui.server import BackgroundPage, PageOptions

    asking = {**client_settings(settings, _ASK_WITHIN), "client.id": "headrace-ui"}
    options = PageOptions(asking, port=port, interval=interval, checkpoints=checkpoints, activity=activity)
    with BackgroundPage(options) as page:
        say(f"the page is on {page.url}activity")
        yield


@command(
    epilog="""\b
Examples:
  headrace ui                                      the cluster of `headrace up`, on http://127.0.0.1:8080
  headrace ui -b broker:9092 --port 9000 --open
  headrace ui --checkpoint checkpoints/orders      with a Spark streaming query
  headrace ui --registry http://localhost:8081     decodes the newest records of a topic
  headrace ui --host 0.0.0.0 --token               for other machines, with a generated token
  headrace ui --allow-changes                      groups can be reset and deleted, with a token
"""
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=8080,
    show_default=True,
    help="The port to listen on. 0: a free port.",
)
@click.option("--interval", type=Seconds(0.5, 3600), default=2.0, show_default=True, help="Seconds between updates.")
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The checkpoint directory of a Spark query, shown as a group. May be repeated.",
)
@click.option(
    "--password", is_flag=True, help=f"Protect the page with a password: prompt for it. Without a prompt: {_PASSWORD}."
)
@click.option(
    "--token",
    is_flag=True,
    help=f"Protect the page with a generated token, and show it. For a token of your own: {_TOKEN}.",
)
@click.option("--registry", envvar="HEADRACE_REGISTRY", metavar="URL", help="The schema registry that decodes records.")
@click.option(
    "--registry-user",
    envvar="HEADRACE_REGISTRY_USER",
    metavar="USER",
    help="Log in as this user; the password is in HEADRACE_REGISTRY_PASSWORD, or prompted for.",
)
@click.option("--registry-ca", type=click.Path(exists=True, dir_okay=False), help="A PEM file with CAs to trust.")
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let the page reset and delete groups. Implies --token, unless a secret is set.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser. The token is not passed to it.")
@cluster_options
def ui(
    settings: Settings,
    timeout: float,
    host: str,
    port: int,
    interval: float,
    checkpoints: tuple[Path, ...],
    password: bool,
    token: bool,
    registry: str | None,
    registry_user: str | None,
    registry_ca: str | None,
    allow_changes: bool,
    open_browser: bool,
) -> None:
    """Serve a live page: groups of all kinds, their lag and rebalances, topics and their newest records.

    The page is read-only, unless --allow-changes is given, and only for this machine. With another --host it can be
    reached from other machines: then it needs a password or a token. Ctrl-C ends it.
    """
    check_packages()
    from ..monitor.loopback import is_loopback_address
    from ..ui.server import PageOptions, listen, page_url, serve_page
    from .typed_values import TypedFields

    given, new_token = _secrets(password, token)
    if not given and not is_loopback_address(host):
        raise click.UsageError(
            f"--host {host} can be reached from other machines, so the page needs a password or a token: add --token, "
            f"which generates one, or --password, or set {_PASSWORD} or {_TOKEN}"
        )
    if allow_changes and not given:
        given, new_token = _secrets(asks_password=False, makes_token=True)
        say("--allow-changes needs a token: other users of this machine must not change groups with your rights")
    found: SchemaRegistry | None = None
    if registry is not None:
        found = TypedFields("bytes", "bytes", registry, registry_user, registry_ca).registry()
    options = PageOptions(
        {**client_settings(with_cluster(settings), timeout), "client.id": "headrace-ui"},
        host,
        port,
        interval,
        checkpoints,
        found,
        given,
        allows_changes=allow_changes,
    )
    with listen(host, port) as listener:
        url = page_url(host, listener.getsockname()[1])
        # Behind the #, browsers do not send it, and it is not in the log of a proxy.
        link = f"{url}login#{new_token}" if new_token else url
        click.echo(f"the page is on {link}")
        if not is_loopback_address(host):
            say("it is not encrypted: use it in a trusted network, or behind a proxy with TLS")
        say("Ctrl-C ends it")
        if open_browser:
            webbrowser.open(url)  # without the token: other users see the arguments of the browser
        asyncio.run(serve_page(options, listener))


def _secrets(asks_password: bool, makes_token: bool) -> tuple[tuple[str, ...], str | None]:
    """All secrets that open the page, and the generated token."""
    found = [os.environ.get(_PASSWORD, ""), os.environ.get(_TOKEN, "")]
    if asks_password and not found[0]:
        if not sys.stdin.isatty():
            raise click.UsageError(f"--password asks on a terminal: without one, set {_PASSWORD}")
        found.append(click.prompt("Password for the page", hide_input=True, confirmation_prompt=True, err=True))
    new_token = secrets.token_urlsafe(24) if makes_token and not found[1] else None
    return tuple(each for each in (*found, new_token) if each), new_token
