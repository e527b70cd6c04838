"""Connections of browsers, none of which can keep others out without sending requests.

uvicorn limits how long a connection may be idle between two requests only. Here, a connection is aborted if it does not
complete the head of its first or next request in time, or does not read its response. If there are too many, the
oldest one that waits for a request, or the rest of one, makes room for a new one. uvicorn's own limit would answer 503
to everybody.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST = 256
_HEAD_WITHIN = 10.0  # seconds
_READ_WITHIN = 15.0


class PageConnection(H11Protocol):
    """All methods are called by the event loop's thread."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._head_timer = self.loop.call_later(_HEAD_WITHIN, transport.abort)
        self._make_room()

    def _make_room(self) -> None:
        if len(self.connections) <= _MOST:
            return
        others = [it for it in self.connections if isinstance(it, PageConnection) and it is not self]
        if waiting := [it for it in others if it.is_idle or it.cycle.more_body]:
            oldest = min(waiting, key=lambda it: it._opened)
            self.connections.discard(oldest)  # it is lost only in the next turn of the event loop
            oldest.transport.abort()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if not self.is_idle:
            self._cancel_head_timer()
        elif self._head_timer is None and self.timeout_keep_alive_task is None:  # any data ends the latter
            self._head_timer = self.loop.call_later(_HEAD_WITHIN, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_write_timer()
        self._write_timer = self.loop.call_later(_READ_WITHIN, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_timer()
        super().resume_writing()

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
