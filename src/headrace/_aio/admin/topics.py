"""Topics: listed, described, created and deleted; and the bounds of their logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._protocol.admin_messages import CREATE_TOPICS, DELETE_TOPICS
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import Api
from ..._security.exchanges import quoted
from ...admin import TopicDescription
from ...errors import HeadraceError
from ...types import TopicPartition, Watermarks
from ..positions.list_offsets import EARLIEST, LATEST
from .client import AdminClient, ChangeOutcome


class Topics:
    def __init__(self, client: AdminClient) -> None:
        self._client = client

    async def cluster_id(self, timeout: float | None) -> str:
        await self.describe((), timeout)
        return self._client.cluster.cluster_id or ""

    async def describe(self, names: Iterable[str] | None, timeout: float | None) -> dict[str, TopicDescription]:
        async def ask() -> dict[str, TopicDescription]:
            found = await self._client.existing_topics(names)
            return {
                name: TopicDescription(name, topic.is_internal, tuple(self._client.cluster.partition_infos(name)))
                for name, topic in sorted(found.items())
            }

        return await self._client.retried("Metadata", timeout, ask)

    async def create(
        self, name: str, partitions: int, replication: int, settings: Mapping[str, str], timeout: float | None
    ) -> None:
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication,
            "assignments": (),
            "configs": [{"name": key, "value": value} for key, value in settings.items()],
        }
        fields = {"topics": [topic], "timeout": self._client.config.request_timeout_ms, "validate_only": False}
        await self._change(CREATE_TOPICS, fields, f"CreateTopics of {name}", timeout, ErrorCode.topic_already_exists)

    async def delete(self, name: str, timeout: float | None) -> None:
        fields = {"topics": [{"name": name, "topic_id": None}], "timeout": self._client.config.request_timeout_ms}
        await self._change(
            DELETE_TOPICS, fields, f"DeleteTopics of {name}", timeout, ErrorCode.unknown_topic_or_partition
        )

    async def _change(
        self, api: Api, fields: Mapping[str, Any], doing: str, timeout: float | None, already_done: ErrorCode
    ) -> None:
        outcome = ChangeOutcome()

        async def ask() -> None:
            body = await self._client.call_any(api, fields, outcome=outcome)
            for result in getattr(body, "responses", None) or body.topics:
                if result.error_code == already_done and outcome.is_unknown:
                    continue
                # The controller did not answer the broker in time, but may still carry it out.
                outcome.is_unknown |= result.error_code == ErrorCode.request_timed_out
                if result.error_code != NONE:
                    error = kafka_error(result.error_code, doing, quoted(result.error_message or ""))
                    error.retriable &= result.error_code != ErrorCode.unknown_topic_or_partition  # deleted, so it stays
                    raise error

        await self._client.retried(doing, timeout, ask)

    async def bounds(
        self, partitions: Iterable[TopicPartition], timeout: float | None
    ) -> dict[TopicPartition, Watermarks]:
        asked = sorted(set(partitions))

        async def ask() -> dict[TopicPartition, Watermarks]:
            there = await self._client.existing_topics(sorted({tp.topic for tp in asked}))
            known = [tp for tp in asked if tp.topic in there and self._client.cluster.partition(tp) is not None]
            first = await self.offsets_at(dict.fromkeys(known, EARLIEST))
            end = await self.offsets_at(dict.fromkeys(known, LATEST))
            return {tp: Watermarks(first[tp], end[tp]) for tp in known}

        return await self._client.retried("ListOffsets", timeout, ask) if asked else {}

    async def offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offset at or after each time, or -1. Tries once. Raises the error of any partition."""
        found = {}
        for tp, listed in (await self._client.list_offsets.by_time(timestamps)).items():
            if isinstance(listed, HeadraceError):
                raise listed
            found[tp] = listed.offset
        return found
