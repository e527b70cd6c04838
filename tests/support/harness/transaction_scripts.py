"""Scripts of raw transactional requests by several producers, for a real broker or a model, and what comes of them.

A step is a text, "A produce 0": a producer, a request, and the partition.

    init        InitProducerId without an identity: a new producer
    reinit      InitProducerId with the producer's own identity
    add         AddPartitionsToTxn (version 1)
    produce     Produce with the next sequence number
    late        Produce again, with the sequence number of the first batch of this identity
    group       AddOffsetsToTxn (version 1)
    offsets     TxnOffsetCommit
    commit      EndTxn; with version 2 the producer continues with the identity in the response
    abort
    other       the producer takes an identity with another producer id
    forget      the last EndTxn or InitProducerId is treated as unanswered: the producer keeps its identity before it
    expire      wait for the transaction's timeout

Each step waits until the coordinator has completed the transaction: what it answers meanwhile depends on time. In the
results, producer ids are numbered in the order of their appearance.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._protocol import messages
from headrace._protocol.messages import Api
from headrace.types import TopicPartition
from support.brokers.record_batches import Entry, encode_batch
from support.harness.raw_requests import Wire

NOBODY = ProducerIdentity(-1, -1)
# The broker has not decided yet.
_TRANSIENT = {
    E.concurrent_transactions,
    E.coordinator_load_in_progress,
    E.coordinator_not_available,
    E.not_coordinator,
    E.not_enough_replicas,
}
_PATIENCE = 2000  # attempts
_PAUSE = 0.01
SHORT = 400  # milliseconds


@dataclasses.dataclass
class _Producer:
    version: int
    timeout_ms: int
    identity: ProducerIdentity = NOBODY
    before: ProducerIdentity = NOBODY
    sent: dict[tuple[ProducerIdentity, TopicPartition], int] = dataclasses.field(default_factory=dict)


class Script:
    """`places` are the partitions that its steps number. `versions` are the transaction.versions that producers use, if
    they are not that of the cluster."""

    def __init__(
        self,
        wire: Wire,
        name: str,
        places: Sequence[TopicPartition],
        topic_id: Any,
        version: int,
        versions: Mapping[str, int] | None = None,
        timeout_ms: int = 60_000,
    ) -> None:
        self.wire = wire
        self.name = name
        self.places = places
        self.topic_id = topic_id
        self.results: list[str] = []
        self._version = version
        self._versions = versions or {}
        self._timeout_ms = timeout_ms
        self._producers: dict[str, _Producer] = {}
        self._ids: dict[int, int] = {}
        self._count = 0

    async def run(self, steps: Sequence[str]) -> list[str]:
        """The results of the steps, and the committed offset of the group."""
        for step in steps:
            who, what, *places = step.split()
            producer = self._producers.get(who)
            if producer is None:
                producer = _Producer(self._versions.get(who, self._version), self._timeout_ms)
                self._producers[who] = producer
            result = await getattr(self, f"_{what}")(producer, *(self.places[int(each)] for each in places))
            await self._settle()
            self.results.append(f"{step}: {result}" if result is not None else step)
        self._producers["end"] = end = _Producer(self._version, 60_000)
        await self._init(end)  # aborts what is open
        await self._settle()
        self.results.append(f"offset {await self._committed()}")
        return self.results

    # -- steps -----------------------------------------------------------------------------------------------------

    async def _init(self, producer: _Producer) -> str:
        return await self._initialize(producer, NOBODY)

    async def _reinit(self, producer: _Producer) -> str:
        return await self._initialize(producer, producer.identity)

    async def _initialize(self, producer: _Producer, identity: ProducerIdentity) -> str:
        fields = {
            "transactional_id": self.name,
            "transaction_timeout": producer.timeout_ms,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
        }
        body = await self._decided(messages.INIT_PRODUCER_ID, 5, fields, lambda body: body.error_code)
        return self._take(producer, body)

    async def _add(self, producer: _Producer, place: TopicPartition) -> str:
        fields = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": producer.identity.producer_id,
            "v3_and_below_producer_epoch": producer.identity.epoch,
            "v3_and_below_topics": [{"name": place.topic, "partitions": [place.partition]}],
        }

        def code(body: Any) -> int:
            code: int = body.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            return code

        return _name(code(await self._decided(messages.ADD_PARTITIONS_TO_TXN, 3, fields, code)))

    async def _produce(self, producer: _Producer, place: TopicPartition) -> str:
        key = producer.identity, place
        sequence = producer.sent.get(key, 0)
        code = await self._write(producer, place, sequence)
        if code == E.none:
            producer.sent[key] = sequence + 1
        return _name(code)

    async def _late(self, producer: _Producer, place: TopicPartition) -> str:
        return _name(await self._write(producer, place, 0))

    async def _write(self, producer: _Producer, place: TopicPartition, sequence: int) -> int:
        producer_id, epoch = producer.identity
        self._count += 1
        value = f"{self.name} {self._count}".encode()
        batch = encode_batch(
            [Entry(value=value)], producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True
        )
        partition = {"index": place.partition, "records": batch, "data": batch}
        topic = {"name": place.topic, "topic_id": self.topic_id, "partition_data": [partition]}
        fields = {"transactional_id": self.name, "acks": -1, "timeout": 30_000, "topic_data": [topic]}

        def code(body: Any) -> int:
            code: int = body.responses[0].partition_responses[0].error_code
            return code

        return code(await self._decided(messages.PRODUCE, 12 if producer.version == 2 else 11, fields, code))

    async def _group(self, producer: _Producer) -> str:
        fields = {**self._fields(producer), "group_id": self.name}
        return _name((await self._decided(messages.ADD_OFFSETS_TO_TXN, 4, fields, lambda b: b.error_code)).error_code)

    async def _offsets(self, producer: _Producer) -> str:
        self._count += 1
        entry = {
            "partition_index": 0,
            "committed_offset": self._count,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            **self._fields(producer),
            "group_id": self.name,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": self.places[0].topic, "partitions": [entry]}],
        }

        def code(body: Any) -> int:
            code: int = body.topics[0].partitions[0].error_code
            return code

        version = 5 if producer.version == 2 else 4
        return _name(code(await self._decided(messages.TXN_OFFSET_COMMIT, version, fields, code)))

    async def _commit(self, producer: _Producer) -> str:
        return await self._end(producer, commits=True)

    async def _abort(self, producer: _Producer) -> str:
        return await self._end(producer, commits=False)

    async def _end(self, producer: _Producer, *, commits: bool) -> str:
        fields = {**self._fields(producer), "committed": commits}
        version = 5 if producer.version == 2 else 4
        body = await self._decided(messages.END_TXN, version, fields, lambda body: body.error_code)
        return self._take(producer, body) if version == 5 else _name(body.error_code)

    async def _other(self, producer: _Producer) -> None:
        producer.before = producer.identity
        producer.identity = ProducerIdentity(producer.identity.producer_id + 1_000_000, 0)

    async def _forget(self, producer: _Producer) -> None:
        if producer.before != NOBODY:
            producer.identity = producer.before

    async def _expire(self, producer: _Producer) -> str:
        while (await self._describe()).transaction_state == "Ongoing":  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE)
        return "expired"

    # -- requests --------------------------------------------------------------------------------------------------

    async def _decided(self, api: Api, version: int, fields: Mapping[str, Any], code: Any) -> Any:
        for _ in range(_PATIENCE):
            body = await self.wire.call(api, version, fields)
            if code(body) not in _TRANSIENT:
                return body
            await asyncio.sleep(_PAUSE)
        raise AssertionError(f"{self.name}: {api.name} is always answered by {_name(code(body))}: {self.results}")

    def _take(self, producer: _Producer, body: Any) -> str:
        if body.error_code != E.none:
            return _name(body.error_code)
        producer.before = producer.identity
        producer.identity = ProducerIdentity(body.producer_id, body.producer_epoch)
        return f"{self._ids.setdefault(body.producer_id, len(self._ids))}:{body.producer_epoch}"

    def _fields(self, producer: _Producer) -> dict[str, Any]:
        producer_id, epoch = producer.identity
        return {"transactional_id": self.name, "producer_id": producer_id, "producer_epoch": epoch}

    async def _describe(self) -> Any:
        body = await self.wire.call(messages.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": (self.name,)})
        return body.transaction_states[0]

    async def _settle(self) -> None:
        while True:
            found = await self._describe()
            if found.error_code != E.none and found.error_code not in _TRANSIENT:
                return
            if found.error_code == E.none and not found.transaction_state.startswith("Prepare"):
                return
            await asyncio.sleep(_PAUSE)

    async def _committed(self) -> int:
        asked = {"group_id": self.name, "member_id": None, "member_epoch": -1, "topics": None}
        body = await self.wire.call(messages.OFFSET_FETCH, 9, {"groups": [asked], "require_stable": True})
        found = [each.committed_offset for topic in body.groups[0].topics for each in topic.partitions]
        return max(found, default=-1)


def _name(code: int) -> str:
    return E(code).name
