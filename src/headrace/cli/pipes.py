"""Detects that the reader of standard output closed the pipe, which is not an error for any command."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator


class PipeClosed(Exception):
    """The reader of standard output closed the pipe."""


def reader_is_gone() -> bool:
    """Whether the reader closed the pipe. A write would fail too, but a command without output would never notice."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always reported
    except (AttributeError, OSError, ValueError):  # no standard output, or not a file
        return False
    return bool(watched.poll(0))


@contextlib.contextmanager
def detect_closed_pipe() -> Iterator[None]:
    """Raises PipeClosed instead of BrokenPipeError if standard output was closed. Other broken pipes stay errors."""
    try:
        yield
    except BrokenPipeError:
        if reader_is_gone():
            raise PipeClosed from None
        raise


def discard_output() -> None:
    """Discard buffered output, so that Python does not try to write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
