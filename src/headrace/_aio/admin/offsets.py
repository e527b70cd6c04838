"""The committed offsets of a group: read, written and deleted without being a member of the group.

The coordinator accepts a commit without a member only while the group is empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.cluster import UNKNOWN_TOPIC
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, exactly_one
from ...errors import HeadraceError, KafkaError
from ...types import OffsetAndMetadata, TopicPartition
from ..commit.offset_requests import LAST_BY_NAME, committed_in
from .client import AdminClient
from .groups import Groups
from .missing import TopicIds, missing_partitions
from .partial import for_each

_NO_MEMBER = {"generation_id_or_member_epoch": -1, "generation_id": -1, "member_id": "", "group_instance_id": None}
_DETAILS: dict[int, str] = {
    ErrorCode.group_subscribed_to_topic: "a member of the group is subscribed to the topic. Stop the members first",
    ErrorCode.group_id_not_found: "the group does not exist, or is a share group, which commits no offsets",
}


class GroupCommits:
    def __init__(self, client: AdminClient, groups: Groups) -> None:
        self._client = client
        self._groups = groups

    async def committed(
        self, group: str, timeout: float | None, *, is_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """`is_stable`: waits for transactions that are about to change them."""
        doing = f"OffsetFetch of group {group}"
        asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}

        async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
            node = await self._client.coordinator(group)
            fields = {"groups": [asked], "require_stable": is_stable}
            body = await self._client.call(node, OFFSET_FETCH, fields, highest=LAST_BY_NAME)
            answer = exactly_one(body.groups, doing)
            if answer.error_code != NONE:
                raise kafka_error(answer.error_code, doing)
            found = {}
            for topic in answer.topics:
                for item in topic.partitions:
                    if item.error_code != NONE:
                        raise kafka_error(item.error_code, f"OffsetFetch of {topic.name} in group {group}")
                    if (committed := committed_in(item)) is not None:
                        found[TopicPartition(topic.name, item.partition_index)] = committed
            return found

        return await self._client.retried(doing, timeout, ask)

    async def alter(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout: float | None,
        topic_ids: TopicIds | None = None,
    ) -> None:
        """`topic_ids` are those of the topics to which the offsets belong, if known. Raises GroupNotEmptyError,
        PartialFailureError, and KafkaError if all partitions were refused for one reason."""
        doing = f"OffsetCommit to group {group}"

        async def send(left: Collection[TopicPartition]) -> dict[TopicPartition, HeadraceError | None]:
            missing, ids = await missing_partitions(self._client, left, topic_ids or {}, doing)
            known = {tp: offsets[tp] for tp in left if tp not in missing}
            return {**missing, **(await self._commit(group, known, ids) if known else {})}

        await self._groups.without_members(
            group, doing, timeout, lambda: for_each(self._client, doing, timeout, offsets, send)
        )

    async def _commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], ids: TopicIds
    ) -> dict[TopicPartition, HeadraceError | None]:
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
        fields = {
            "group_id": group,
            **_NO_MEMBER,
            "topics": [
                {"name": name, "topic_id": ids.get(name), "partitions": items} for name, items in topics.items()
            ],
        }
        highest = None if all(ids.get(name) for name in topics) else LAST_BY_NAME
        node = await self._client.coordinator(group)
        body = await self._client.call(node, OFFSET_COMMIT, fields, highest=highest)
        names = {topic_id: name for name, topic_id in ids.items()}
        found: dict[TopicPartition, HeadraceError | None] = {}
        for topic in body.topics:
            name = topic.name if hasattr(topic, "name") else names.get(topic.topic_id, "")
            for item in topic.partitions:
                tp = TopicPartition(name, item.partition_index)
                found[tp] = _error_of(item.error_code, f"OffsetCommit of {tp} to group {group}")
        return found

    async def delete(self, group: str, partitions: Collection[TopicPartition], timeout: float | None) -> None:
        """Raises as `alter` does."""
        doing = f"OffsetDelete of group {group}"

        async def send(left: Collection[TopicPartition]) -> dict[TopicPartition, HeadraceError | None]:
            topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for tp in left:
                topics[tp.topic].append({"partition_index": tp.partition})
            fields = {
                "group_id": group,
                "topics": [{"name": name, "partitions": items} for name, items in topics.items()],
            }
            node = await self._client.coordinator(group)
            body = await self._client.call(node, OFFSET_DELETE, fields)
            if (error := _error_of(body.error_code, doing)) is not None:
                raise error
            found: dict[TopicPartition, HeadraceError | None] = {}
            for topic in body.topics:
                for item in topic.partitions:
                    tp = TopicPartition(topic.name, item.partition_index)
                    found[tp] = _error_of(item.error_code, f"OffsetDelete of {tp} in group {group}")
                    if item.error_code in UNKNOWN_TOPIC:  # the offsets of a deleted topic are deleted with it
                        found[tp] = None
            return found

        await self._groups.without_members(
            group, doing, timeout, lambda: for_each(self._client, doing, timeout, partitions, send)
        )


def _error_of(code: int, doing: str) -> KafkaError | None:
    if code == NONE:
        return None
    return kafka_error(code, doing, _DETAILS.get(code))
