"""What run() is told, and what it tells."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

from ..arguments import callback_of, number_of, shown, topic_of, whole_number_of
from ..errors import ConfigError
from ..machines.backoff import Backoff
from ..machines.workload import Terms
from ..records import Record

Handler = Callable[[Record], Any]
DeadLetter = str | Callable[[Record, BaseException], Any]

_LEAST_IN_FLIGHT = 1000
_LONGEST_BACKOFF = (2**31 - 1) / 1000  # seconds; as retry.backoff.max.ms


class Pace(Protocol):
    """The parameters that every run() has."""

    @property
    def concurrency(self) -> int: ...
    @property
    def max_in_flight(self) -> int | None: ...
    @property
    def retry_backoff(self) -> float: ...
    @property
    def retry_backoff_max(self) -> float: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def drain(self) -> float: ...
    @property
    def on_progress(self) -> Callable[[Any], Any] | None: ...
    @property
    def progress_interval(self) -> float: ...


def check_pace(pace: Pace) -> None:
    """Raises TypeError, and ConfigError for what makes no sense."""
    whole_number_of("concurrency", pace.concurrency)
    if pace.max_in_flight is not None:
        whole_number_of("max_in_flight", pace.max_in_flight)
    for name in ("retry_backoff", "retry_backoff_max", "drain", "progress_interval"):
        number_of(name, getattr(pace, name))
    if not 0 <= pace.retry_backoff <= pace.retry_backoff_max <= _LONGEST_BACKOFF:
        raise ConfigError(
            f"retry_backoff must not be negative, nor above retry_backoff_max; both at most {_LONGEST_BACKOFF:.0f} s"
        )
    check_timeout(pace.timeout)
    if pace.drain < 0 or pace.progress_interval <= 0:
        raise ConfigError("drain must not be negative, and progress_interval above 0")
    callback_of("on_progress", pace.on_progress)


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
        check_pace(self)
        if not isinstance(self.order, str):
            raise TypeError(f"order must be a string, not {shown(self.order)}")
        if self.retries is not None:
            whole_number_of("retries", self.retries)
        if isinstance(self.dead_letter, str):
            topic_of(self.dead_letter, "dead_letter")
        elif self.dead_letter is not None and not callable(self.dead_letter):
            raise TypeError(
                f"dead_letter must be the name of a topic, or a function of a record and its error, not "
                f"{shown(self.dead_letter)}"
            )

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
    if not 0 < number_of("timeout", timeout, "a number of seconds, or None") < math.inf:
        raise ConfigError(f"timeout={timeout}: must be a positive number of seconds, or None")
