"""Standard output that is a pipe, and whatever reads it having had enough: no error of any command."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator


class ReaderGone(Exception):
    """Nobody reads standard output any more."""


def reader_is_gone() -> bool:
    """Whether that is so. Writing tells as well, but a command that has nothing to write would go on for ever."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always told of
    except (AttributeError, OSError, ValueError):  # none at all, or no file
        return False
    return bool(watched.poll(0))


@contextlib.contextmanager
def noticing_that_the_reader_is_gone() -> Iterator[None]:
    """Raises ReaderGone for an output that failed because of it. Other pipes that broke are errors as they were."""
    try:
        yield
    except BrokenPipeError:
        if reader_is_gone():
            raise ReaderGone from None
        raise


def forget_the_rest() -> None:
    """What is left in the buffer has nowhere to go, and must not be tried again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
