"""The parameters of run(), and its progress."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

from ..._arguments import callback_of, number_of, short_repr, topic_of, whole_number_of
from ..._machines.backoff import Backoff
from ..._machines.run.scheduler import SchedulerSettings
from ...errors import ConfigError
from ...records import Record

Handler = Callable[[Record], Any]
DeadLetter = str | Callable[[Record, BaseException], Any]

_LEAST_IN_FLIGHT = 1000
_LONGEST_BACKOFF = (2**31 - 1) / 1000  # seconds; as retry.backoff.max.ms


class RunLimits(Protocol):
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


def check_limits(limits: RunLimits) -> None:
    """Raises TypeError, and ConfigError for invalid values."""
    whole_number_of("concurrency", limits.concurrency)
    if limits.max_in_flight is not None:
        whole_number_of("max_in_flight", limits.max_in_flight)
    for name in ("retry_backoff", "retry_backoff_max", "drain", "progress_interval"):
        number_of(name, getattr(limits, name))
    if not 0 <= limits.retry_backoff <= limits.retry_backoff_max <= _LONGEST_BACKOFF:
        raise ConfigError(
            f"retry_backoff must not be negative, nor above retry_backoff_max; both at most {_LONGEST_BACKOFF:.0f} s"
        )
    check_timeout(limits.timeout)
    if limits.drain < 0 or limits.progress_interval <= 0:
        raise ConfigError("drain must not be negative, and progress_interval above 0")
    callback_of("on_progress", limits.on_progress)


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """The progress of run() since its start."""

    handled: int
    """Records that the handler has finished."""
    retried: int
    """How often a handler (or writing a dead letter) failed and was retried."""
    dead_lettered: int
    """Records that failed for the last time and were written as dead letters."""
    dropped: int
    """Records whose partition was revoked or lost before they were started, or while they were being processed."""
    running: int
    """Records that are being processed."""
    stuck: int
    """Calls of the handler that are overdue and still running. Their results are ignored."""
    in_flight: int
    """Records that are being processed or queued."""
    lag: int | None
    """Records in the logs that are not done, including those in flight; None while that is unknown."""
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
    producer: Any = None

    def __post_init__(self) -> None:
        check_limits(self)
        if not isinstance(self.order, str):
            raise TypeError(f"order must be a string, not {short_repr(self.order)}")
        if self.retries is not None:
            whole_number_of("retries", self.retries)
        if isinstance(self.dead_letter, str):
            topic_of(self.dead_letter, "dead_letter")
        elif self.dead_letter is not None and not callable(self.dead_letter):
            raise TypeError(
                f"dead_letter must be the name of a topic, or a function of a record and its error, not "
                f"{short_repr(self.dead_letter)}"
            )

    def for_scheduler(self) -> SchedulerSettings:
        """Raises ConfigError for invalid values."""
        return SchedulerSettings(
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
