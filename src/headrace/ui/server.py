"""The server: listens, watches the cluster, and ends within two seconds, also if pages are open.

`serve_page()` is for a command whose only purpose is the page; signals end it. `BackgroundPage` is for a command that
does something else on its main thread: the server has a thread of its own, and ends with the context.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from ..errors import HeadraceError
from ..monitor.collector import Scope
from ..monitor.loopback import is_loopback_address
from ..monitor.watcher import Watcher
from .access import PageAccess, digest
from .activity import Activity
from .application import make_application
from .changes import GroupChanges
from .connections import PageConnection
from .feed import Feed
from .records import RecordReader

if TYPE_CHECKING:
    from ..formats import SchemaRegistry

_STARTS_WITHIN = 15.0
_ENDS_WITHIN = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class PageOptions:
    """What to watch, and who may see it. Without secrets, only this machine."""

    settings: Mapping[str, Any] = dataclasses.field(repr=False)
    host: str = "127.0.0.1"
    port: int = 8080
    interval: float = 2.0
    checkpoints: tuple[Path, ...] = ()
    registry: SchemaRegistry | None = None
    secrets: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    activity: Activity | None = None
    allows_changes: bool = False


def listen(host: str, port: int) -> socket.socket:
    """Raises HeadraceError if the address cannot be used."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except socket.gaierror as error:
        raise HeadraceError(f"cannot listen on {where}: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise HeadraceError(
                f"cannot listen on {where}: the port is in use. Choose another one with --port; 0 finds a free one"
            ) from None
        raise HeadraceError(f"cannot listen on {where}: {error.strerror}") from None


def page_url(host: str, port: int) -> str:
    """The address for a browser on this machine, or on another one if the server listens on all addresses."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


class _PageServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._feed.close()  # uvicorn waits for open responses, and event streams would not end
        await super().shutdown(sockets)


async def serve_page(
    options: PageOptions, listener: socket.socket, on_start: Callable[[uvicorn.Server], None] | None = None
) -> None:
    """Serve until a signal arrives, or `should_exit` of the server is set."""
    if not options.secrets and not is_loopback_address(options.host):
        raise HeadraceError(f"{options.host} is not loopback: a password or a token is needed")
    access = PageAccess(secrets.token_bytes(32), tuple(digest(each) for each in options.secrets))
    port = listener.getsockname()[1]
    scope = Scope(checkpoints=options.checkpoints, with_sizes=True)
    watcher = Watcher(options.settings, scope, interval=options.interval)
    changes = GroupChanges(options.settings) if options.allows_changes else None
    async with watcher, Feed(watcher, options.interval, options.activity, changes is not None) as feed:
        reader = RecordReader(options.settings, options.registry)
        # Cookies do not belong to a port: two pages on one machine need two names.
        application = make_application(feed, reader, access, cookie=f"headrace-{port}", changes=changes)
        server = _PageServer(_config(application), feed)
        if on_start is not None:
            on_start(server)
        await server.serve(sockets=[listener])


def _config(application: Any) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=PageConnection,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
    )


class BackgroundPage:
    """The page while another command runs. `with` starts and ends its thread, `url` is its address."""

    def __init__(self, options: PageOptions) -> None:
        self._options = options
        self._listener = listen(options.host, options.port)
        self.url = page_url(options.host, self._listener.getsockname()[1])
        self._server: uvicorn.Server | None = None
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-ui", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(_STARTS_WITHIN)
        if self._server is None:
            raise HeadraceError(f"the page could not be started: {self._error or 'it took too long'}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.should_exit = True  # read by the server's thread ten times per second
        self._thread.join(_ENDS_WITHIN)

    def _run(self) -> None:
        try:
            asyncio.run(serve_page(self._options, self._listener, self._on_start))
        except BaseException as error:  # noqa: BLE001  # reported by __enter__
            self._error = error
        finally:
            self._started.set()
            self._listener.close()

    def _on_start(self, server: uvicorn.Server) -> None:
        self._server = server
        self._started.set()
