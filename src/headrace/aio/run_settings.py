"""What run() is told, and what it tells."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from ..machines.backoff import Backoff
from ..machines.workload import Terms
from ..records import Record

Handler = Callable[[Record], Any]
DeadLetter = str | Callable[[Record, BaseException], Any]

_LEAST_IN_FLIGHT = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """What run() has done so far."""

    handled: int
    """Records that the handler is done with."""
    retried: int
    """How often a handler (or the writing of a dead letter) failed and was tried again."""
    dead_lettered: int
    """Records that failed for good and are among the dead letters."""
    dropped: int
    """Records that were left to others, since their partition was: not begun, or still worked on when it was lost."""
    running: int
    """Records that are worked on."""
    stuck: int
    """Calls of the handler that are over their time and still run. They count for nothing."""
    in_flight: int
    """The records that are worked on, with those that wait for it."""
    lag: int | None
    """Records in the logs that are not done, those in flight included; None as long as that is not known."""
    seconds: float
    """Since run() was called."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunSettings:
    """The parameters of run()."""

    order: str
    concurrency: int
    max_in_flight: int | None
    retries: int | None
    retry_backoff: float
    retry_backoff_max: float
    dead_letter: DeadLetter | None
    timeout: float | None
    drain: float
    on_progress: Callable[[Progress], Any] | None
    progress_interval: float

    def __post_init__(self) -> None:
        if self.dead_letter is not None and not callable(self.dead_letter) and not isinstance(self.dead_letter, str):
            raise TypeError("dead_letter must be the name of a topic, or a function of a record and its error")
        check_timeout(self.timeout)
        if self.drain < 0 or self.progress_interval <= 0:
            raise ConfigError("drain must not be negative, and progress_interval above 0")

    def terms(self) -> Terms:
        """Raises ConfigError for what makes no sense."""
        return Terms(
            self.order,
            self.concurrency,
            max(_LEAST_IN_FLIGHT, 4 * self.concurrency) if self.max_in_flight is None else self.max_in_flight,
            self.retries,
            Backoff(round(self.retry_backoff * 1000), round(self.retry_backoff_max * 1000)),
            self.dead_letter is not None,
        )


def check_timeout(timeout: float | None) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout={timeout!r}: must be a number of seconds, or None")
    if not 0 < timeout < math.inf:
        raise ConfigError(f"timeout={timeout}: must be a positive number of seconds, or None")
