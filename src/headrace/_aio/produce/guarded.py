"""A bug in a callback of the producer's loop fails the producer, instead of letting it hang."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

log = logging.getLogger(__name__)


class Crashing(Protocol):
    """`on_crash` is called with what its steps raise."""

    on_crash: Callable[[BaseException], None]


P = ParamSpec("P")
C = TypeVar("C", bound=Crashing)


def guarded(step: Callable[Concatenate[C, P], None]) -> Callable[Concatenate[C, P], None]:
    """For callbacks of the loop: if one raises, the producer fails instead of hanging."""

    @functools.wraps(step)
    def run(self: C, /, *args: P.args, **keywords: P.kwargs) -> None:
        try:
            step(self, *args, **keywords)
        except Exception as error:
            log.exception("the sender crashed")
            self.on_crash(error)

    return run
