"""The background of a client, its tasks on a loop: how other threads call it, and how calls learn that it cannot work.

    crash      a background task ended with an exception: a bug of this library. It stays: every poll raises it
    obstacle   no broker accepts a request, and a retry does not help: bad credentials, for example. It may pass

Both kinds of consumers raise these when they have no records to return, not more often than `ErrorPacing` allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from .._machines.error_pacing import RETRIED, STAYS, ErrorPacing
from ..errors import AuthenticationError, HeadraceError

log = logging.getLogger(__name__)


def nobody() -> None:
    """There is no background to wake yet."""


def call_if_open(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Calls the function on the loop, from any thread. Does nothing if the loop is closed: nothing there waits for it
    any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def watch(task: asyncio.Task[None], on_crash: Callable[[BaseException], None]) -> asyncio.Task[None]:
    """For a task that must not end by itself: if it raises, that is a bug of ours. `on_crash` runs on its loop."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s crashed: %r", task.get_name(), error, exc_info=error)
            on_crash(error)

    task.add_done_callback(ended)
    return task


class BackgroundErrors:
    """Set on the loop's thread, raised on the user's. Each is one reference, so it needs no lock."""

    def __init__(self, role: str = "consumer") -> None:
        self._role = role
        self.crash: BaseException | None = None
        self.obstacle: HeadraceError | None = None

    @property
    def refusal(self) -> HeadraceError | None:
        """An obstacle that stays for as long as the client lives."""
        return self.obstacle if self.obstacle is not None and _is_final(self.obstacle) else None

    def raise_due(self, pacing: ErrorPacing, now: float, is_late: bool) -> None:
        """Raises what was not raised recently. `is_late` when the poll's timeout has passed."""
        obstacle = self.obstacle
        if obstacle is not None:
            is_final = _is_final(obstacle)
            if pacing.admits(obstacle, now, STAYS if is_final else RETRIED, is_late=is_late and is_final):
                raise obstacle.with_traceback(None)  # without the frames of the last time
        crash = self.crash_error()
        if crash is not None and pacing.admits(crash, now, STAYS, is_late=is_late):
            raise crash from self.crash

    def crash_error(self) -> HeadraceError | None:
        """What to raise, from `crash`, after a background task has crashed."""
        if self.crash is None:
            return None
        return HeadraceError(f"a background task of this {self._role} crashed: {self.crash!r}")


def _is_final(error: HeadraceError) -> bool:
    return isinstance(error, AuthenticationError) and error.is_final
