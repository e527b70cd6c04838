"""The two commit logs of KIP-333: the group's own, and that of the group `<group.id>.backlog`.

Without lanes there is only the first. It is read as if there might be others all the same, for a consumer that was not
told of `enable.parallel.rebalance` must not skip what one that was has left open.

A commit of both writes the second one first, and does not wait long for it: each has a coordinator of its own, and the
live lane's commits must not wait for the backlog's. Nothing hangs on the order: what the second says counts only beside
the token in the first, and the first goes on repeating that until the second has acknowledged that it is done.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping

from kio.schema.errors import ErrorCode

from ..errors import CommitFailedError, HeadraceError, KafkaError, OffsetResetError, RequestTimeoutError
from ..lane_marks import Mark, is_unused, standing
from ..machines.cluster import UNKNOWN_TOPIC
from ..machines.lanes import Lanes
from ..offsets import OffsetSet
from ..protocol.codes import kafka_error
from ..types import OffsetAndMetadata, TopicPartition
from .coordinator import Coordinator
from .intake import Intake

log = logging.getLogger(__name__)

_PATIENCE = 0.25  # seconds for the second log to answer, before the first is written ...
_LAST_PATIENCE = 5.0  # ... and after it: so long wait the next commits


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What one lane of a partition has done."""

    lanes: Lanes
    done: OffsetSet
    note: str = ""
    leader_epoch: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A commit: of partitions without lanes, of live lanes, of backlog lanes."""

    plain: Mapping[TopicPartition, OffsetAndMetadata] = dataclasses.field(default_factory=dict)
    live: Mapping[TopicPartition, Share] = dataclasses.field(default_factory=dict)
    backlog: Mapping[TopicPartition, Share] = dataclasses.field(default_factory=dict)
    topic_ids: Mapping[str, uuid.UUID | None] = dataclasses.field(default_factory=dict)  # when it was made
    is_of_positions: bool = False  # and not of offsets that the user chose

    def __bool__(self) -> bool:
        return bool(self.plain or self.live or self.backlog)

    def of(self, chosen: Callable[[TopicPartition], bool]) -> Plan:
        """Of these partitions only."""
        return Plan(
            {tp: it for tp, it in self.plain.items() if chosen(tp)},
            {tp: it for tp, it in self.live.items() if chosen(tp)},
            {tp: it for tp, it in self.backlog.items() if chosen(tp)},
            self.topic_ids,
            self.is_of_positions,
        )

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """As a callback is told of them: of two lanes the live one's."""
        shares = {**self.backlog, **self.live}
        told = {tp: OffsetAndMetadata(it.done.low, it.note, it.leader_epoch) for tp, it in shares.items()}
        return {**self.plain, **told}

    def entries(self) -> dict[TopicPartition, tuple[object, ...]]:
        """Equal for a partition of two plans exactly if the second one would write nothing new."""
        found: dict[TopicPartition, tuple[object, ...]] = {tp: (it,) for tp, it in self.plain.items()}
        for tp, share in self.live.items():
            found[tp] = (share.lanes.token, share.lanes.is_closed, share.done, share.note)
        for tp, share in self.backlog.items():
            found[tp] = (*found.get(tp, ()), share.done)
        return found


class TwoLogs:
    """Belongs to the loop's thread. What it notes on lanes is behind the intake's lock."""

    def __init__(self, first: Coordinator, second: Coordinator, intake: Intake) -> None:
        self._first = first
        self._second = second
        self._lock = intake.lock
        self._backlog = intake.backlog
        self._writing: asyncio.Task[HeadraceError | None] | None = None  # to the second log

    @property
    def is_member(self) -> bool:
        """Whether the first log's commits are fenced by a membership."""
        return self._first.is_member

    # -- one try each; the caller retries what is retriable ----------------------------------------------------------

    async def read(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[Mark, Mark | None] | HeadraceError]:
        """What both logs say of the partitions that have a commit; an error where that cannot be understood, or where
        the second log is needed and cannot be read."""
        found = await self._first.committed(partitions)
        marks = await self._marks(found)
        for tp, committed in found.items():
            if isinstance(committed, OffsetAndMetadata) and isinstance(marks[tp], tuple) and is_unused(committed):
                log.warning(
                    "the commit of %s at %d is read as a plain one: the text beside it, %.40r, is damaged, or was not "
                    "written with this offset",
                    tp,
                    committed.offset,
                    committed.metadata,
                )
        return marks

    async def _marks(
        self, found: Mapping[TopicPartition, OffsetAndMetadata | KafkaError | None]
    ) -> dict[TopicPartition, tuple[Mark, Mark | None] | HeadraceError]:
        result: dict[TopicPartition, tuple[Mark, Mark | None] | HeadraceError] = {}
        for tp, committed in found.items():
            if isinstance(committed, KafkaError):
                result[tp] = committed
            elif committed is not None:
                result[tp] = _read(tp, committed)
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
                        result[tp] = both[0], Mark.read(progress)
                    except ValueError as error:
                        log.warning("%s: the progress of its backlog cannot be read and is done again: %s", tp, error)
        return result

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """As a user is told: while a range is open the backlog's offset, so that all before is done."""
        found = await self._first.committed(partitions)
        unknown = [tp for tp, it in found.items() if isinstance(it, KafkaError) and it.code in UNKNOWN_TOPIC]
        if unknown:  # deleted, and perhaps created again. The user asks for what is committed under that name
            found.update(await self._first.committed(unknown, by_name=True))
        told = {tp: it for tp, it in found.items() if not isinstance(it, KafkaError)}
        for tp, both in (await self._marks(found)).items():
            if isinstance(both, HeadraceError):
                raise both
            first, second = both
            if first.token:
                low = standing(first, second).low
                told[tp] = OffsetAndMetadata(low, first.note, first.leader_epoch if low == first.offset else None)
        return told

    async def commit(self, plan: Plan) -> None:
        """If the second log cannot be written, or does not answer, the first one is written before that is raised. If
        some topics do not exist any more, everything else is written before CommitFailedError is raised."""
        with self._lock:
            progress = {tp: share.lanes.backlog_mark(share.done, share.note) for tp, share in plan.backlog.items()}
            progress = {tp: mark for tp, mark in progress.items() if mark.done != plan.backlog[tp].lanes.progress}
        begun = await self._begin_second(plan, progress) if progress else None
        with self._lock:
            marks = {
                tp: share.lanes.live_mark(share.done, share.note, share.leader_epoch) for tp, share in plan.live.items()
            }
        refused: CommitFailedError | None = None
        if plan.plain or marks:
            refused = await self._write_first({**plan.plain, **_commits(marks, self._first.group)}, plan.topic_ids)
            if refused is not None:
                marks = {tp: mark for tp, mark in marks.items() if tp not in refused.partitions}
            with self._lock:
                for tp, mark in marks.items():
                    plan.live[tp].lanes.first = mark
            await self._tidy_up({tp: plan.live[tp].lanes for tp, mark in marks.items() if not mark.token})
        if progress:
            try:
                await self._end_second(begun)
            except CommitFailedError as error:
                if refused is None or not error.partitions <= refused.partitions:
                    raise
        if refused is not None:
            raise refused

    async def _write_first(
        self, commits: Mapping[TopicPartition, OffsetAndMetadata], topic_ids: Mapping[str, uuid.UUID | None]
    ) -> CommitFailedError | None:
        """Returns the refusal of a part of it."""
        try:
            await self._first.commit(commits, topic_ids)
        except CommitFailedError as error:
            if not error.partitions:
                raise
            return error
        return None

    async def _begin_second(
        self, plan: Plan, progress: Mapping[TopicPartition, Mark]
    ) -> asyncio.Task[HeadraceError | None] | None:
        """Nobody's end or impatience takes back what is under way, so the next one has to wait for it. None: it still
        is."""
        commits = _commits(progress, self._second.group)
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_PATIENCE)
            if not self._writing.done():
                return None
        lanes = {tp: plan.backlog[tp].lanes for tp in progress}
        writing = self._write_second(lanes, progress, commits, plan.topic_ids)
        self._writing = asyncio.create_task(writing, name="backlog commit")
        await asyncio.wait({self._writing}, timeout=_PATIENCE)
        return self._writing

    async def _write_second(
        self,
        lanes: Mapping[TopicPartition, Lanes],
        progress: Mapping[TopicPartition, Mark],
        commits: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[str, uuid.UUID | None],
    ) -> HeadraceError | None:
        refused: CommitFailedError | None = None
        try:
            await self._second.commit(commits, topic_ids)
        except CommitFailedError as error:
            if not error.partitions:
                return error
            refused = error
            progress = {tp: mark for tp, mark in progress.items() if tp not in error.partitions}
        except HeadraceError as error:
            return error
        with self._lock:
            for tp, mark in progress.items():
                lanes[tp].progress = mark.done
            if self._backlog is not None:
                self._backlog.committed(progress)
        return refused

    async def _end_second(self, begun: asyncio.Task[HeadraceError | None] | None) -> None:
        if begun is not None:
            await asyncio.wait({begun}, timeout=_LAST_PATIENCE)
        if begun is None or not begun.done():
            raise RequestTimeoutError(
                f"OffsetCommit to group {self._second.group}: no answer yet. The backlog's progress is not known to be "
                f"committed, the rest is"
            )
        if (failure := begun.result()) is not None:
            raise failure

    async def _tidy_up(self, closed: Mapping[TopicPartition, Lanes]) -> None:
        """Progress of ranges that the first log does not have any more. Left there, it would look to those who watch
        lags as if the second group fell ever further behind. Once is enough: it does no harm."""
        stale = {tp: lanes for tp, lanes in closed.items() if not lanes.is_tidy}
        for lanes in stale.values():
            lanes.is_tidy = True
        if stale:
            try:
                await self._second.forget(stale)
            except HeadraceError as error:
                log.info("the backlog's offsets of %s stay committed: %s", ", ".join(map(str, stale)), error)

    async def begin(self, lanes: Mapping[TopicPartition, Lanes]) -> None:
        """Writes the tokens, before anything of the live lanes is handed out."""
        await self._first.commit({tp: it.first.commit for tp, it in lanes.items()})

    async def farewell(
        self, lanes: Mapping[TopicPartition, Lanes], topic_ids: Mapping[str, uuid.UUID | None] | None = None
    ) -> None:
        """Leaves in the first log what any client understands."""
        with self._lock:
            marks = {tp: it.farewell(self._position(tp)) for tp, it in lanes.items()}
        if marks:
            await self._first.commit({tp: mark.commit for tp, mark in marks.items()}, topic_ids)

    def _position(self, tp: TopicPartition) -> int:
        """The backlog lane's; the lock is held."""
        backlog = self._backlog
        return backlog.position(tp) if backlog is not None and tp in backlog.lanes else 0


def _commits(marks: Mapping[TopicPartition, Mark], group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Raises CommitFailedError if a user's note leaves no room."""
    made: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, mark in marks.items():
        try:
            made[tp] = mark.commit
        except ValueError as error:
            code = ErrorCode.offset_metadata_too_large
            raise kafka_error(code, f"OffsetCommit of {tp} to group {group}", str(error), CommitFailedError) from None
    return made


def _read(tp: TopicPartition, committed: OffsetAndMetadata) -> tuple[Mark, None] | OffsetResetError:
    try:
        return Mark.read(committed), None
    except ValueError as error:
        text = (
            f"the commit of {tp} at {committed.offset} has ranges beside it that are still to be read, but cannot be "
            f"understood ({error}): seek() or commit() where to go on"
        )
        return OffsetResetError(text, {tp})
