"""Shows what a command waits for, and how many seconds it has run: live on a terminal, elsewhere as one line."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from .formatting import printable, say


@dataclasses.dataclass(slots=True)
class Elapsed:
    """A text that is rendered with the seconds since `begun` (of `time.monotonic()`)."""

    text: str
    begun: float

    def __str__(self) -> str:
        return f"{printable(self.text)} ({time.monotonic() - self.begun:.0f} s)"

    def __rich__(self) -> Text:
        return Text(str(self))  # as Text: messages of Spark are not markup


@contextlib.contextmanager
def waiting(text: str, begun: float, *, says: bool = True) -> Iterator[None]:
    """Show the text while the block runs. Without `says`, only on a terminal.

    The block must not write to standard output: on a terminal, rich would print it to standard error.
    """
    console, shown = Console(stderr=True), Elapsed(text, begun)
    if console.is_terminal:
        with console.status(shown):
            yield
        return
    if says:
        say(f"{shown} ...")
    yield
