"""Members, commits and start offsets of many groups, with one request for each coordinator and kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..._protocol.admin_messages import (
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    SHARE_GROUP_DESCRIBE,
)
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.group_data import read_assignment
from ..._protocol.messages import Api
from ..._protocol.survey_messages import MANY_COMMITS, STREAMS_GROUP_DESCRIBE
from ..._security.exchanges import quoted
from ...errors import HeadraceError, NetworkError, ProtocolError
from ...types import OffsetAndMetadata, TopicPartition
from ..commit.offset_requests import committed_in
from .found import FoundGroup, FoundMember, FoundMembers, FoundShareOffset
from .survey import Survey, each

Committed = dict[TopicPartition, OffsetAndMetadata]

_AT_ONCE = 500  # groups in one request: a response must fit into receive.message.max.bytes


async def members(survey: Survey, groups: Iterable[FoundGroup]) -> dict[str, FoundMembers | HeadraceError]:
    """The members of these groups, and what they are assigned."""
    wanted: dict[tuple[int, str], list[str]] = defaultdict(list)
    for it in groups:
        wanted[it.node, it.kind].append(it.name)

    async def ask(batch: _Batch) -> dict[str, FoundMembers | HeadraceError]:
        api, field, read = _DESCRIBED.get(batch.kind, _DESCRIBED["classic"])
        fields = {field: batch.names, "include_authorized_operations": False}
        body = await survey.call(batch.node, api, fields)
        return {it.group_id: _described(it, read) for it in body.groups}

    return await _in_batches(wanted, ask)


async def committed(survey: Survey, groups: Iterable[FoundGroup]) -> dict[str, Committed | HeadraceError]:
    """All committed offsets of these groups. The broker omits topics that this client may not describe."""

    async def ask(batch: _Batch) -> dict[str, Committed | HeadraceError]:
        asked = [{"group_id": name, "member_id": None, "member_epoch": -1, "topics": None} for name in batch.names]
        fields = {"groups": asked, "require_stable": False}
        body = await survey.call(batch.node, MANY_COMMITS, fields)
        return {it.group_id: _committed(it) for it in body.groups}

    return await _in_batches(_by_node(groups), ask)


async def share_offsets(
    survey: Survey, groups: Iterable[FoundGroup]
) -> dict[str, dict[TopicPartition, FoundShareOffset | HeadraceError] | HeadraceError]:
    """The start offsets of these share groups, of the partitions that they have started to read."""

    async def ask(batch: _Batch) -> dict[str, Any]:
        fields = {"groups": [{"group_id": name, "topics": None} for name in batch.names]}
        body = await survey.call(batch.node, DESCRIBE_SHARE_GROUP_OFFSETS, fields)
        return {it.group_id: _share_offsets(it) for it in body.groups}

    return await _in_batches(_by_node(groups), ask)


# -- requests ----------------------------------------------------------------------------------------------------


class _Batch(tuple[int, str, tuple[str, ...]]):
    """The coordinator, the kind, and the names of some groups."""

    @property
    def node(self) -> int:
        return self[0]

    @property
    def kind(self) -> str:
        return self[1]

    @property
    def names(self) -> tuple[str, ...]:
        return self[2]


def _by_node(groups: Iterable[FoundGroup]) -> dict[tuple[int, str], list[str]]:
    wanted: dict[tuple[int, str], list[str]] = defaultdict(list)
    for it in groups:
        wanted[it.node, ""].append(it.name)
    return wanted


async def _in_batches(wanted: Mapping[tuple[int, str], list[str]], ask: Callable[[_Batch], Any]) -> dict[str, Any]:
    batches = [
        _Batch((node, kind, tuple(names[start : start + _AT_ONCE])))
        for (node, kind), names in wanted.items()
        for start in range(0, len(names), _AT_ONCE)
    ]
    found: dict[str, Any] = {}
    for batch, answer in (await each(batches, ask)).items():
        if isinstance(answer, HeadraceError):
            found |= dict.fromkeys(batch.names, answer)
        else:
            found |= answer
            missing = set(batch.names) - answer.keys()
            found |= {name: NetworkError(f"the response does not contain group {name}") for name in missing}
    return found


# -- responses ---------------------------------------------------------------------------------------------------


def _described(found: Any, read: Callable[[Any], Any]) -> FoundMembers | HeadraceError:
    if found.error_code != NONE:
        detail = quoted(getattr(found, "error_message", None) or "")
        return kafka_error(found.error_code, f"description of group {found.group_id}", detail)
    assignor = str(getattr(found, "assignor_name", None) or getattr(found, "protocol_data", None) or "")
    try:
        return FoundMembers(found.group_state, assignor, tuple(read(found)))
    except ProtocolError as error:
        return ProtocolError(f"description of group {found.group_id}: {error}")


def _member(
    it: Any, partitions: frozenset[TopicPartition], target: frozenset[TopicPartition] | None = None
) -> FoundMember:
    instance = getattr(it, "instance_id", None) or getattr(it, "group_instance_id", None)
    return FoundMember(it.member_id, it.client_id, it.client_host.lstrip("/"), instance, partitions, target)


def _classic_members(found: Any) -> list[FoundMember]:
    # Other users of classic groups (Kafka Connect, schema registries) have assignments of their own form.
    is_consumer = found.protocol_type in ("consumer", "")
    return [
        _member(it, read_assignment(bytes(it.member_assignment))[0] if is_consumer else frozenset())
        for it in found.members
    ]


def _assigned_members(found: Any) -> list[FoundMember]:
    return [_member(it, _assigned(it.assignment)) for it in found.members]


def _planned_members(found: Any) -> list[FoundMember]:
    return [_member(it, _assigned(it.assignment), _assigned(it.target_assignment)) for it in found.members]


def _assigned(assignment: Any) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic_name, number) for topic in assignment.topic_partitions for number in topic.partitions
    )


def _streams_members(found: Any) -> list[FoundMember]:
    """A task is a partition of all source topics of a subtopology."""
    sources: dict[str, tuple[str, ...]] = {}
    for it in (found.topology and found.topology.subtopologies) or ():
        sources[it.subtopology_id] = (*it.source_topics, *(topic.name for topic in it.repartition_source_topics))

    def tasks(assignment: Any) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(topic, number)
            for task in assignment.active_tasks
            for topic in sources.get(task.subtopology_id, ())
            for number in task.partitions
        )

    return [_member(it, tasks(it.assignment), tasks(it.target_assignment)) for it in found.members]


_DESCRIBED: dict[str, tuple[Api, str, Callable[[Any], list[FoundMember]]]] = {
    "classic": (DESCRIBE_GROUPS, "groups", _classic_members),
    "consumer": (CONSUMER_GROUP_DESCRIBE, "group_ids", _planned_members),
    "share": (SHARE_GROUP_DESCRIBE, "group_ids", _assigned_members),
    "streams": (STREAMS_GROUP_DESCRIBE, "group_ids", _streams_members),
}


def _committed(found: Any) -> Committed | HeadraceError:
    if found.error_code != NONE:
        return kafka_error(found.error_code, f"OffsetFetch of group {found.group_id}")
    offsets: Committed = {}
    for topic in found.topics:
        for it in topic.partitions:
            if it.error_code != NONE:
                return kafka_error(it.error_code, f"OffsetFetch of {topic.name} in group {found.group_id}")
            if (commit := committed_in(it)) is not None:
                offsets[TopicPartition(topic.name, it.partition_index)] = commit
    return offsets


def _share_offsets(found: Any) -> dict[TopicPartition, FoundShareOffset | HeadraceError] | HeadraceError:
    if found.error_code != NONE:
        doing = f"offsets of share group {found.group_id}"
        return kafka_error(found.error_code, doing, quoted(found.error_message or ""))
    offsets: dict[TopicPartition, FoundShareOffset | HeadraceError] = {}
    for topic in found.topics:
        for it in topic.partitions:
            tp = TopicPartition(topic.topic_name, it.partition_index)
            if it.error_code != NONE:
                offsets[tp] = kafka_error(it.error_code, f"start offset of {tp} in share group {found.group_id}")
            elif it.start_offset >= 0:
                lag = getattr(it, "lag", -1)
                offsets[tp] = FoundShareOffset(it.start_offset, None if lag < 0 else lag)
    return offsets
