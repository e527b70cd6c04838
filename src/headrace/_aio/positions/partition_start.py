"""How partitions without a position start, when their group has commits.

`PartitionStart` is what the updater asks. `CommittedStart` is the usual one: a partition resumes at its commit. The
other one starts partitions at two places at once and lives in `_aio/lanes/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from ..._machines.commit.committed_offset import CommittedOffset
from ..._machines.positions.positions import Committed, ListedOffset, PositionVersions
from ...errors import HeadraceError
from ...types import TopicPartition

LogEnds = Mapping[TopicPartition, ListedOffset | HeadraceError]


class Answers(NamedTuple):
    """What brokers say of partitions that are about to start."""

    committed: Committed
    log_ends: LogEnds


class Settled(NamedTuple):
    """The partitions that need nothing else now, and the error for which the question has to be repeated."""

    partitions: Collection[TopicPartition] = ()
    again: HeadraceError | None = None


class CommittedOffsets(Protocol):
    """Where commits are read. Belongs to the loop's thread."""

    @property
    def is_member(self) -> bool: ...

    async def read(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | HeadraceError]: ...


class PartitionStart(Protocol):
    @property
    def checks_plain_commits(self) -> bool:
        """Whether plain commits, too, are compared with the log before the start. Others always are."""

    @property
    def is_member(self) -> bool:
        """Whether there is a listener for lost ranges."""

    async def ask(self, partitions: Collection[TopicPartition]) -> Answers: ...

    async def settle(self, committed: Committed, ends: LogEnds, versions: PositionVersions) -> Settled:
        """Starts partitions in another way than at their commit. Called with commits that are valid in their logs."""


class CommittedStart:
    """Every partition resumes at its commit."""

    checks_plain_commits = False

    def __init__(self, reader: CommittedOffsets) -> None:
        self._reader = reader

    @property
    def is_member(self) -> bool:
        return self._reader.is_member

    async def ask(self, partitions: Collection[TopicPartition]) -> Answers:
        return Answers(await self._reader.read(partitions), {})

    async def settle(self, committed: Committed, ends: LogEnds, versions: PositionVersions) -> Settled:
        return Settled()
