"""Partitions to which no offset is committed: they do not exist, or belong to a topic that was recreated."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

from kio.schema.errors import ErrorCode

from ..._protocol.codes import kafka_error
from ...errors import HeadraceError
from ...types import TopicPartition
from .client import AdminClient

TopicIds = Mapping[str, uuid.UUID | None]


async def missing_partitions(
    client: AdminClient, partitions: Collection[TopicPartition], before: TopicIds, doing: str
) -> tuple[dict[TopicPartition, HeadraceError | None], TopicIds]:
    """Their errors, and the ids of the topics that there are now. `before`: the ids that the topics had, if known."""
    there = await client.existing_topics(sorted({tp.topic for tp in partitions}))
    ids = {name: client.cluster.topic_id(name) for name in there}
    missing: dict[TopicPartition, HeadraceError | None] = {}
    for tp in partitions:
        code, detail = ErrorCode.unknown_topic_or_partition, "the topic does not exist"
        if tp.topic in there:
            if before.get(tp.topic) not in (None, ids[tp.topic]):
                code, detail = ErrorCode.unknown_topic_id, "the topic was deleted and recreated meanwhile"
            elif client.cluster.partition(tp) is None:
                detail = "the topic has no such partition"
            else:
                continue
        error = kafka_error(code, f"{doing}: {tp}", detail)
        error.retriable = False
        missing[tp] = error
    return missing, ids
