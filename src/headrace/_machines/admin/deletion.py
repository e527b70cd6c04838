"""What somebody who deletes a group has to know first."""

from __future__ import annotations

from collections.abc import Iterable

from ...types import OffsetAndMetadata
from .reset import is_sink_decision


def deletion_warning(commits: Iterable[OffsetAndMetadata]) -> str:
    """What the deletion of these commits would break, as the rest of a sentence about the group. Empty if nothing."""
    if any(is_sink_decision(each) for each in commits):
        return "has the decisions of an exactly-once Spark sink: without them, its query stops, or writes a batch twice"
    return ""
