"""Reads what KIP-333's two commit logs say of partitions, for every consumer of a group.

The first log is the group's own, the second that of the group `<group.id>.backlog`. A consumer without
enable.parallel.rebalance reads both, too: it must not skip the ranges that one with it has left open.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from ..._machines.cluster import UNKNOWN_TOPIC
from ..._machines.commit.committed_offset import CommittedOffset
from ..._machines.lanes.commit_metadata import CommitMark, committed_offset, done_offsets, is_unused
from ...errors import HeadraceError, KafkaError, OffsetResetError
from ...types import OffsetAndMetadata, TopicPartition
from ..commit.offset_requests import OffsetRequests
from .progress_log import ProgressLog

log = logging.getLogger(__name__)

Marks = dict[TopicPartition, tuple[CommitMark, CommitMark | None] | HeadraceError]


class CommitLogReader:
    """The `CommittedReader`. Belongs to the loop's thread."""

    def __init__(self, first: OffsetRequests, second: ProgressLog) -> None:
        self._first = first
        self._second = second

    @property
    def is_member(self) -> bool:
        return self._first.is_member

    async def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset | HeadraceError]:
        """What both logs say of the partitions that have a commit; an error where that cannot be parsed, or where the
        second log is needed and cannot be read."""
        found = await self._first.committed(partitions)
        marks = await self._marks(found)
        self._second.note(tp for tp, it in marks.items() if isinstance(it, tuple) and it[0].token)
        for tp, committed in found.items():
            if isinstance(committed, OffsetAndMetadata) and isinstance(marks[tp], tuple) and is_unused(committed):
                log.warning(
                    "the commit of %s at %d is used without its metadata %.40r, which is damaged, or was written with "
                    "another offset: all records before it count as processed",
                    tp,
                    committed.offset,
                    committed.metadata,
                )
        return {tp: it if isinstance(it, HeadraceError) else committed_offset(*it) for tp, it in marks.items()}

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """For the user: while a range is open the backlog's offset, so that everything before it is done."""
        found = await self._first.committed(partitions)
        unknown = [tp for tp, it in found.items() if isinstance(it, KafkaError) and it.code in UNKNOWN_TOPIC]
        if unknown:  # deleted, and perhaps recreated. The user asks for what is committed under that name
            found.update(await self._first.committed(unknown, by_name=True))
        shown = {tp: it for tp, it in found.items() if not isinstance(it, KafkaError)}
        for tp, both in (await self._marks(found)).items():
            if isinstance(both, HeadraceError):
                raise both
            first, second = both
            if first.token:
                low = done_offsets(first, second).low
                shown[tp] = OffsetAndMetadata(low, first.note, first.leader_epoch if low == first.offset else None)
        return shown

    async def _marks(self, found: Mapping[TopicPartition, OffsetAndMetadata | KafkaError | None]) -> Marks:
        result: Marks = {}
        for tp, committed in found.items():
            if isinstance(committed, KafkaError):
                result[tp] = committed
            elif committed is not None:
                result[tp] = _parsed(tp, committed)
        with_token = [tp for tp, it in result.items() if isinstance(it, tuple) and it[0].token]
        if with_token:
            try:
                beside = await self._second.committed(with_token)
            except HeadraceError as error:
                return {**result, **dict.fromkeys(with_token, error)}
            for tp, progress in beside.items():
                both = result[tp]
                if isinstance(progress, KafkaError):
                    result[tp] = progress
                elif progress is not None and isinstance(both, tuple):
                    try:
                        result[tp] = both[0], CommitMark.read(progress)
                    except ValueError as error:
                        log.warning(
                            "%s: the progress of the backlog cannot be parsed, the backlog is delivered again: %s",
                            tp,
                            error,
                        )
        return result


def _parsed(tp: TopicPartition, committed: OffsetAndMetadata) -> tuple[CommitMark, None] | OffsetResetError:
    try:
        return CommitMark.read(committed), None
    except ValueError as error:
        text = (
            f"the commit of {tp} at {committed.offset} has open ranges, which cannot be parsed ({error}): seek() to an "
            f"offset or commit() one to resume there"
        )
        return OffsetResetError(text, {tp})
