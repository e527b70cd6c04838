"""OffsetCommit, OffsetFetch and OffsetDelete of one group, and what the error codes of their responses mean.

A member commits with its generation (or epoch) and id. A consumer with `assign()` is not a member of its group: it
commits with generation -1 and an empty id, and the coordinator accepts that only while the group has no members.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from ..._machines.cluster import UNKNOWN_TOPIC
from ..._machines.group.actions import MemberIdentity, Partitions
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, exactly_one
from ...config.consumer import ConsumerConfig
from ...errors import CommitFailedError, KafkaError, NetworkError
from ...types import OffsetAndMetadata, TopicPartition
from ..group.coordinator import Coordinator
from ..network.client import Client

_FENCED = {
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.fenced_instance_id,
    ErrorCode.fenced_member_epoch,
    ErrorCode.group_id_not_found,
}
# The generation is about to change, and the same commit will succeed with the next one. But only for partitions that
# the consumer still has: others may have advanced in revoked ones, and a late commit would rewind them.
_REBALANCING = {ErrorCode.rebalance_in_progress, ErrorCode.stale_member_epoch}
_REVOKED = (
    "some of these partitions were revoked from this consumer by a rebalance that is in progress. Commit before "
    "the listener's on_partitions_revoked returns"
)
_TOO_LATE = (
    "the group has assigned this consumer's partitions to others, because it missed its session or poll deadline. "
    "Records since the last commit may be delivered again. If poll() was called too rarely, raise "
    "max.poll.interval.ms or lower max.poll.records"
)
_LOST = (
    "this partition was lost: the group has assigned it to another member, or no longer waits for its revoke, which "
    "was delayed beyond max.poll.interval.ms. Its records may be delivered again"
)
_DELETED = (
    "the topic or partition does not exist, or was deleted. The offsets of a deleted topic are deleted with it. The "
    "commit of the other partitions succeeded"
)
_RECREATED = (
    "the topic was deleted and recreated: the offset belongs to the deleted topic. The commit of the other partitions "
    "succeeded"
)
_PROPAGATION = 0.5  # seconds until all brokers know a new topic
_NO_IDS: Mapping[str, uuid.UUID | None] = {}
LAST_BY_NAME = 9  # version of OffsetCommit and OffsetFetch; later ones have topic ids


class MemberState(Protocol):
    """The questions to a member's machine that explain a rejected commit."""

    @property
    def is_expired(self) -> bool: ...
    @property
    def owned(self) -> Partitions: ...


class CommittingMember(Protocol):
    """The membership of the consumer that commits, as far as commits depend on it: see `Rebalancer`."""

    @property
    def is_subscribed(self) -> bool: ...
    @property
    def lost_for_good(self) -> Partitions: ...
    @property
    def member(self) -> MemberState: ...
    def identity(self) -> MemberIdentity: ...
    def has(self, partitions: Iterable[TopicPartition]) -> bool: ...
    def has_moved_on(self, sent: MemberIdentity) -> bool: ...
    def commit_refused(self, code: int, sent: MemberIdentity) -> None: ...


class OffsetRequests:
    """Belongs to the loop's thread. Each method tries once; the caller retries retriable errors."""

    def __init__(
        self, client: Client[ConsumerConfig], coordinator: Coordinator, membership: CommittingMember | None = None
    ) -> None:
        self._client = client
        self._coordinator = coordinator
        self._membership = membership

    @property
    def group(self) -> str:
        return self._coordinator.group

    @property
    def is_member(self) -> bool:
        return self._membership is not None and self._membership.is_subscribed

    def _identity(self) -> MemberIdentity:
        if self._membership is None or not self.is_member:
            return MemberIdentity()
        return self._membership.identity()

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[str, uuid.UUID | None] | None = None,
    ) -> None:
        """`topic_ids` are the ids of the topics that the offsets belong to, if known.

        Raises CommitFailedError if the group has other members, or (with `partitions`) if some topics no longer exist
        and all other partitions are committed; KafkaError for other errors of the broker.
        """
        known, recreated = self._same_topics(offsets, topic_ids or {})
        try:
            if known:
                await self._commit(known, topic_ids or {})
        except CommitFailedError as error:
            if not error.partitions or not recreated:
                raise
            raise self._missing_topics_error(
                {**dict.fromkeys(error.partitions, error.code), **recreated}, _DELETED
            ) from None
        if recreated:
            raise self._missing_topics_error(recreated, _RECREATED)

    def _same_topics(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], topic_ids: Mapping[str, uuid.UUID | None]
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, int]]:
        """The offsets of topics that were not recreated, and error codes for those that were. An offset of the deleted
        topic must not be committed for the new one of the same name: that would skip records."""
        now, _ = self._topic_ids({tp.topic for tp in offsets})
        known, recreated = {}, {}
        for tp, committed in offsets.items():
            before, after = topic_ids.get(tp.topic), now[tp.topic]
            if before is not None and after is not None and before != after:
                recreated[tp] = int(ErrorCode.unknown_topic_id)
            else:
                known[tp] = committed
        return known, recreated

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], before: Mapping[str, uuid.UUID | None]
    ) -> None:
        topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for tp, committed in offsets.items():
            topics[tp.topic].append(
                {
                    "partition_index": tp.partition,
                    "committed_offset": committed.offset,
                    "committed_leader_epoch": -1 if committed.leader_epoch is None else committed.leader_epoch,
                    "committed_metadata": committed.metadata,
                }
            )
        ids, highest = self._topic_ids(topics, before)
        identity = self._identity()
        if self._membership is not None and self._membership.is_subscribed:
            if not identity.member_id:
                raise self._no_member_error(self._membership)
            if lost := sorted(self._membership.lost_for_good & offsets.keys()):
                doing = f"OffsetCommit of {lost[0]} to group {self.group}"
                raise kafka_error(ErrorCode.unknown_member_id, doing, _LOST, CommitFailedError)
        fields = {
            "group_id": self.group,
            "generation_id_or_member_epoch": identity.generation,
            "generation_id": identity.generation,
            "member_id": identity.member_id,
            "group_instance_id": identity.instance_id,
            "topics": [
                {"name": name, "topic_id": ids.get(name), "partitions": items} for name, items in topics.items()
            ],
        }
        body = await self._coordinator.call(OFFSET_COMMIT, fields, highest=highest)
        names = {topic_id: name for name, topic_id in ids.items()}
        unknown: dict[TopicPartition, int] = {}
        for topic in body.topics:
            for item in topic.partitions:
                if item.error_code != NONE:
                    tp = TopicPartition(_named(topic, names), item.partition_index)
                    if item.error_code not in UNKNOWN_TOPIC:
                        raise self._commit_error(item.error_code, tp, identity, offsets)
                    unknown[tp] = item.error_code
        if unknown:
            await self._explain_unknown(unknown, ids)

    async def _explain_unknown(
        self, unknown: Mapping[TopicPartition, int], ids: Mapping[str, uuid.UUID | None]
    ) -> None:
        """The coordinator does not know these: they were deleted, or were just created and are not known to every
        broker yet. A topic that was known here (`ids`) is deleted as soon as the cluster view drops it.

        Raises CommitFailedError if they were deleted, a retriable KafkaError if other brokers know them.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PROPAGATION
        names = {tp.topic for tp in unknown}
        while True:
            await self._client.fetch_metadata(names, may_create=False)  # rotates over the brokers
            with self._client.lock:
                cluster = self._client.cluster
                found = {tp for tp in unknown if not cluster.is_unknown(tp.topic) and cluster.partition(tp)}
                recreated = {tp for tp in found if ids[tp.topic] not in (None, cluster.topic_id(tp.topic))}
                deleted = {tp for tp in unknown if ids[tp.topic] is not None and tp.topic not in cluster.topics}
            if still := sorted(found - recreated):
                raise kafka_error(unknown[still[0]], f"OffsetCommit of {still[0]} to group {self.group}")
            if len(recreated | deleted) == len(unknown) or loop.time() >= deadline:
                raise self._missing_topics_error(unknown, _RECREATED if recreated else _DELETED)
            await asyncio.sleep(self._client.retries.pause(1))

    def _missing_topics_error(self, partitions: Mapping[TopicPartition, int], detail: str) -> CommitFailedError:
        tps = sorted(partitions)
        doing = f"OffsetCommit of {', '.join(map(str, tps))} to group {self.group}"
        error = kafka_error(partitions[tps[0]], doing, detail, CommitFailedError)
        assert isinstance(error, CommitFailedError)
        error.retriable = False
        error.partitions = frozenset(partitions)
        return error

    def _commit_error(
        self,
        code: int,
        tp: TopicPartition,
        identity: MemberIdentity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> KafkaError:
        self._coordinator.note(code)
        if self._membership is not None:
            self._membership.commit_refused(code, identity)
        doing = f"OffsetCommit of {tp} to group {self.group}"
        if self._is_premature(code, identity):
            code = ErrorCode.rebalance_in_progress
        if code in _FENCED:
            detail = "the group has active members: a consumer with assign() needs a group.id of its own"
            return kafka_error(code, doing, _TOO_LATE if identity.member_id else detail, CommitFailedError)
        if code in _REBALANCING and self._membership is not None and not self._membership.has(offsets):
            return kafka_error(code, doing, _REVOKED, CommitFailedError)
        error = kafka_error(code, doing)
        error.retriable |= code in _REBALANCING
        return error

    def _is_premature(self, code: int, identity: MemberIdentity) -> bool:
        """The group is in its next generation, and this member does not know it yet: JoinGroup is answered on another
        connection, so its answer may come before or after this one."""
        return (
            code == ErrorCode.illegal_generation
            and self._membership is not None
            and self._membership.has_moved_on(identity)
        )

    def _no_member_error(self, membership: CommittingMember) -> KafkaError:
        doing = f"OffsetCommit to group {self.group}"
        if membership.member.is_expired:
            limit = self._client.config.max_poll_interval_ms
            detail = (
                f"this consumer left the group, because poll() was not called for max.poll.interval.ms={limit}, and "
                f"other members may have its partitions. Records since the last commit may be delivered again. Raise "
                f"max.poll.interval.ms or lower max.poll.records; the next poll() rejoins"
            )
        elif membership.member.owned:
            detail = _TOO_LATE
        else:
            detail = "this consumer is not a member of the group: call poll(), which joins it"
        return kafka_error(ErrorCode.unknown_member_id, doing, detail, CommitFailedError)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, by_name: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata | KafkaError | None]:
        """The committed offsets; None for partitions without one; a KafkaError where the coordinator reports one: a
        retriable one while a transaction that commits offsets is open, or if it does not know the topic. With
        `by_name`, topics need not exist."""
        topics: dict[str, list[int]] = defaultdict(list)
        for tp in partitions:
            topics[tp.topic].append(tp.partition)
        ids, highest = self._topic_ids(topics)
        if by_name:
            highest = LAST_BY_NAME
        identity = self._identity()
        by_epoch = self._client.config.group_protocol == "consumer" and bool(identity.member_id)
        fields = {
            "groups": [
                {
                    "group_id": self.group,
                    "member_id": identity.member_id if by_epoch else None,
                    "member_epoch": identity.generation if by_epoch else -1,
                    "topics": [
                        {"name": name, "topic_id": ids.get(name), "partition_indexes": numbers}
                        for name, numbers in topics.items()
                    ],
                }
            ],
            "require_stable": True,
        }
        body = await self._coordinator.call(OFFSET_FETCH, fields, highest=highest)
        group = exactly_one(body.groups, f"OffsetFetch of group {self.group}")
        if group.error_code != NONE:
            self._coordinator.note(group.error_code)
            error = kafka_error(group.error_code, f"OffsetFetch of group {self.group}")
            # A fenced member rejoins, and asks again if it still needs the offsets.
            error.retriable |= by_epoch and group.error_code in _REBALANCING | _FENCED
            raise error
        names = {topic_id: name for name, topic_id in ids.items()}
        found: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = {}
        for topic in group.topics:
            for item in topic.partitions:
                tp = TopicPartition(_named(topic, names), item.partition_index)
                if item.error_code != NONE:
                    found[tp] = kafka_error(item.error_code, f"OffsetFetch of {tp} in group {self.group}")
                else:
                    found[tp] = committed_in(item)
        return found

    async def delete(self, partitions: Iterable[TopicPartition]) -> None:
        """Deletes the committed offsets of these. Needs the right to delete the group's offsets; raises KafkaError."""
        topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for tp in partitions:
            topics[tp.topic].append({"partition_index": tp.partition})
        fields = {
            "group_id": self.group,
            "topics": [{"name": name, "partitions": items} for name, items in topics.items()],
        }
        body = await self._coordinator.call(OFFSET_DELETE, fields)
        if body.error_code != NONE:
            self._coordinator.note(body.error_code)
            raise kafka_error(body.error_code, f"OffsetDelete of group {self.group}")
        for topic in body.topics:
            for item in topic.partitions:
                if item.error_code not in (NONE, *UNKNOWN_TOPIC):  # the offsets of a deleted topic are deleted with it
                    raise kafka_error(
                        item.error_code,
                        f"OffsetDelete of {topic.name}-{item.partition_index} in group {self.group}",
                    )

    def _topic_ids(
        self, names: Iterable[str], before: Mapping[str, uuid.UUID | None] = _NO_IDS
    ) -> tuple[dict[str, uuid.UUID | None], int | None]:
        """The topic ids, and the highest usable version: if some ids are unknown, one with names. A topic that the
        cluster view has dropped keeps the id that it had `before`: its name may belong to a newer topic."""
        with self._client.lock:
            ids = {name: self._client.cluster.topic_id(name) or before.get(name) for name in names}
        return ids, None if all(ids.values()) else LAST_BY_NAME


def committed_in(item: Any) -> OffsetAndMetadata | None:
    """The committed offset in a partition of an OffsetFetch response; None without one."""
    if item.committed_offset < 0:
        return None
    epoch = None if item.committed_leader_epoch < 0 else item.committed_leader_epoch
    return OffsetAndMetadata(item.committed_offset, item.metadata or "", epoch)


def _named(topic: Any, asked: Mapping[uuid.UUID | None, str]) -> str:
    """The name of a topic in a response, by the ids in the request: the topic may be deleted by now."""
    name: str | None = getattr(topic, "name", None) or asked.get(topic.topic_id)
    if name is None:
        raise NetworkError(f"the response contains the topic {topic.topic_id}, which is not in the request")
    return name
