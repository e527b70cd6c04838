"""A real producer on the virtual loop: accumulator, sender, transactions, metadata. It has no thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace._aio.flag import Flag
from headrace._aio.produce.accumulator import Accumulator
from headrace._aio.produce.runtime import ProducerRuntime
from headrace._aio.produce.transaction_admin import TransactionAdmin
from headrace._aio.produce.transactions import Transactions
from headrace._machines.produce.open_transaction import OpenTransaction
from headrace._record_batch import Delivery
from headrace.config.producer import ProducerConfig
from headrace.errors import RequestTimeoutError
from headrace.types import GroupMetadata, OffsetAndMetadata, ProducerRecord, RecordMetadata, TopicPartition

from .connections import Network


class SimulatedProducer:
    """Its methods are those of AsyncProducer, as far as they are needed."""

    def __init__(self, network: Network, name: str, **settings: Any) -> None:
        settings = {"bootstrap_servers": "broker:1,broker:2,broker:3", "client_id": name} | settings
        self.name = name
        self.config = ProducerConfig.parse(**settings)
        self.accumulator = Accumulator(self.config)
        self.runtime = ProducerRuntime(self.config, self.accumulator)
        self.is_dead = False
        self._network = network

    @property
    def _block(self) -> float:
        return self.config.max_block_ms / 1000

    @property
    def transactions(self) -> Transactions:
        found = self.runtime.sender.transactions
        assert found is not None
        return found

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> Delivery:
        since = self.accumulator.metadata_version
        deadline = asyncio.get_running_loop().time() + (self._block if timeout is None else timeout)
        while isinstance(found := self.accumulator.append(topic, value, key, None, 1, partition, since), Flag):
            try:
                async with asyncio.timeout_at(deadline):
                    await found.wait_async()
            except TimeoutError:
                raise RequestTimeoutError("send") from None
        return found

    async def _send_within(self, record: ProducerRecord, timeout: float) -> Delivery:
        assert record.value is None or isinstance(record.value, bytes)
        assert record.key is None or isinstance(record.key, bytes)
        return await self.send(record.topic, record.value, record.key, partition=record.partition, timeout=timeout)

    async def result(self, delivery: Delivery) -> RecordMetadata:
        return await self.accumulator.waiting.wait(delivery)

    async def flush(self) -> None:
        flush = object()
        try:
            await self.accumulator.waiting.wait_for_async(self.accumulator.begin_flush(flush))
        finally:
            self.accumulator.end_flush(flush)

    async def init_transactions(self, timeout: float | None = None) -> None:
        await self.transactions.init_transactions(timeout or self._block)

    async def begin(self, timeout: float | None = None) -> None:
        await self.transactions.begin(timeout or self._block)

    async def commit(self, timeout: float | None = None) -> None:
        await self.transactions.commit(timeout or self._block)

    async def abort(self, timeout: float | None = None) -> None:
        await self.transactions.abort(timeout or self._block)

    async def _settle(self, timeout: float | None = None) -> None:
        await self.transactions.settle(timeout or self._block)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata, timeout: float | None = None
    ) -> None:
        await self.transactions.send_offsets(offsets, group, timeout or self._block)

    async def hand_over(self) -> OpenTransaction | None:
        return await self.transactions.hand_over()

    def admin(self) -> TransactionAdmin:
        return TransactionAdmin(self.runtime.client, self.config.default_api_timeout_ms / 1000)

    async def close(self) -> None:
        await self.runtime.close()

    async def kill(self) -> None:
        """SIGKILL: nothing that it does from now on arrives anywhere."""
        self.is_dead = True
        self._network.kill(self.name)
        await self.runtime.close()
