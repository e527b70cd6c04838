"""Records that a query should read but that the log no longer has: `failOnDataLoss`.

A log can end before the offset up to which a query has read it. `classify_truncation` decides why, without I/O:

    its high watermark does not    Intact: nothing is lost, and there is nothing to read yet. The end that the query saw
                                   was the last stable offset: it ran without isolation.level=read_committed before
    it begins at 0 and ends        Recreated: the topic was deleted and recreated. The query reads it from its
    before half of that offset     beginning
    otherwise                      Truncated: records were lost, for example in an unclean leader election. The query
                                   resumes at the end of the log

An offset does not say which log it belongs to, so the last two cannot be told apart with certainty. A query that
mistakes an election that lost five records for a new topic would read a whole partition again. Hence the condition.
"""

from __future__ import annotations

import dataclasses
import logging

from .._machines.commit.offset_set import OffsetSet
from ..errors import HeadraceError
from ..types import TopicPartition, Watermarks
from .options.source import SourceOptions

log = logging.getLogger(__name__)


class DataLossError(HeadraceError):
    """Records of a range are no longer in the log, and failOnDataLoss is true."""


def report_data_loss(message: str, options: SourceOptions, cause: BaseException | None = None) -> None:
    """Logs a warning, or raises DataLossError if failOnDataLoss is true."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{message}. Set failOnDataLoss=false to continue without these records") from cause
    log.warning("%s", message)


@dataclasses.dataclass(frozen=True, slots=True)
class Intact:
    """The query resumes where it was."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recreated:
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Truncated:
    message: str
    done: OffsetSet
    """The offsets that the query has read, up to the new end of the log."""


def classify_truncation(tp: TopicPartition, done: OffsetSet, log: Watermarks) -> Intact | Recreated | Truncated:
    read_to = done.frontier
    if log.high >= read_to:
        return Intact()
    found = f"{tp} was read to offset {read_to}, but its log ends at {log.high}"
    if log.low == 0 and log.high < read_to / 2:
        return Recreated(f"{found}: the topic was recreated, and must be read from its beginning")
    return Truncated(
        f"{found}: records were lost, and the query must resume at the end of the log. (If the topic was recreated, "
        f"start the query with a new checkpoint to read all of it)",
        OffsetSet(log.high, done.holes),
    )
