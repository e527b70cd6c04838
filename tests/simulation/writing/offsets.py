"""The offsets of a group: committed, and those of open transactions. A member commits with its generation."""

from __future__ import annotations

import dataclasses

from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace.types import TopicPartition

Offsets = dict[TopicPartition, tuple[int, str]]


@dataclasses.dataclass(eq=False)
class GroupOffsets:
    """Without members, anybody may commit. The group exists from its first offset on, even if that one is aborted,
    until the broker finds it empty."""

    committed: Offsets = dataclasses.field(default_factory=dict)
    pending: dict[int, Offsets] = dataclasses.field(default_factory=dict)  # by producer id
    generation: int = -1
    members: dict[str, list[TopicPartition]] = dataclasses.field(default_factory=dict)
    exists: bool = False

    def add(self, identity: ProducerIdentity, member: str, generation: int, offsets: Offsets) -> int:
        if member or self.members:
            if member not in self.members:
                return E.unknown_member_id
            if generation != self.generation:
                return E.illegal_generation
        self.pending.setdefault(identity.producer_id, {}).update(offsets)
        self.exists = True
        return E.none

    def end(self, identity: ProducerIdentity, *, commits: bool) -> None:
        offsets = self.pending.pop(identity.producer_id, {})
        if commits:
            self.committed.update(offsets)

    def remove_if_empty(self) -> None:
        if not (self.committed or self.pending or self.members):
            self.exists = False
