"""A log that ends before the place where a query stands: what has happened to it. No I/O.

    its own end, open transactions included, does not    nothing is lost, and nothing there to read: the query was one
                                                         without isolation.level=read_committed before
    it begins at 0, and ends before half of it           its topic was deleted and made again: from the beginning
    else                                                 records were lost, as by an unclean election: on at its end

The last two cannot be told apart for sure, since offsets say nothing of the log that they are of. A query that takes an
election that has cost it five records for a new topic would read a whole partition again. So it takes evidence.
"""

from __future__ import annotations

import dataclasses

from ..offsets import OffsetSet
from ..types import TopicPartition, Watermarks


@dataclasses.dataclass(frozen=True, slots=True)
class Intact:
    """It goes on where it stands."""


@dataclasses.dataclass(frozen=True, slots=True)
class MadeAgain:
    said: str


@dataclasses.dataclass(frozen=True, slots=True)
class CutShort:
    said: str
    done: OffsetSet
    """Of what is left."""


def what_happened(tp: TopicPartition, done: OffsetSet, log: Watermarks) -> Intact | MadeAgain | CutShort:
    read = done.frontier
    if log.high >= read:
        return Intact()
    said = f"{tp} was read to offset {read}, and its log ends at {log.high}"
    if log.low == 0 and log.high < read / 2:
        return MadeAgain(f"{said}: it was made again, and has to be read from its beginning")
    return CutShort(
        f"{said}: records were lost, and it goes on there. (If the topic was made again, start the query with a new "
        f"checkpoint to read all of it)",
        OffsetSet(log.high, done.holes),
    )
