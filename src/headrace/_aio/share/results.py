"""The results of acknowledgements, from the broker's answer until a `commit()` has returned them.

Acknowledgements are sent in the background, too: with a fetch, or 50 ms after the user's call. Whatever call learns of
their results (a poll, for the callback), the next commit() returns them. For each partition there is one result, the
first error or else None, so a program that never commits keeps no more than that.
"""

from __future__ import annotations

from ...errors import HeadraceError
from ...types import TopicPartition

Results = dict[TopicPartition, HeadraceError | None]


class UnreturnedResults:
    """Those that no commit() has returned. A commit() gets them with `hand_over`, and sets `is_returned` as its last
    step: if an interrupt (Ctrl-C) comes before that, the next commit() returns them."""

    def __init__(self, before: UnreturnedResults | None = None) -> None:
        self.is_returned = False
        self._before = before
        self._found: Results = {}

    def add(self, tp: TopicPartition, error: HeadraceError | None) -> None:
        """Can be repeated after an interrupt."""
        self._found[tp] = self._found.get(tp) or error

    def hand_over(self) -> tuple[Results, UnreturnedResults]:
        """All results, and those that follow."""
        before = self._before
        if before is not None:
            if not before.is_returned:
                earlier = before.all()
                self._found = earlier | {tp: earlier.get(tp) or error for tp, error in self._found.items()}
            self._before = None
        return self.all(), UnreturnedResults(self)

    def all(self) -> Results:
        return self._found.copy()
