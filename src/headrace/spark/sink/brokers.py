"""`Coordination` by the brokers of a cluster: transactions, and decisions in the metadata of committed offsets.

The group of the offsets is the sink id. Their topic is one that exists and that nobody deletes while the query runs:
the option decisionTopic, else the option topic, else Kafka's own __consumer_offsets. All topics of the group are read,
so the topic can change between two runs of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from ..._aio.produce.transaction_admin import TransactionAdmin
from ..._machines.produce.idempotence import ProducerIdentity
from ..._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from ...errors import KafkaError
from ...sync.producer import Producer
from ...types import OffsetAndMetadata, TopicPartition
from .. import producer_access
from ..options.parsers import OptionError
from ..options.sink import SinkOptions
from .protocol import BatchDecision, SinkError, decode_decision, encode_decision

T = TypeVar("T")

_TIMEOUT = "transaction.timeout.ms"
# The default of transaction.max.timeout.ms is the first one. The other ones are for brokers with a lower limit.
_TIMEOUTS_MS = (900_000, 300_000, 60_000, 10_000)
_NEEDED_VERSION = 2
_INTERNAL_TOPIC = "__consumer_offsets"


class BrokerCoordination:
    """For one call of Spark: uses a producer that the worker process keeps."""

    def __init__(self, producer: Producer, options: SinkOptions) -> None:
        assert options.sink_id is not None
        self._producer = producer
        self._group = options.sink_id
        self._topic = options.decision_topic or options.topic or _INTERNAL_TOPIC
        given = options.settings.get(_TIMEOUT)
        self._timeouts = _TIMEOUTS_MS if given is None else (int(given),)

    def init(self, transactional_id: str) -> tuple[ProducerIdentity, int]:
        version = self._ask(lambda admin: admin.transaction_version(transactional_id))
        if version < _NEEDED_VERSION:
            raise SinkError(
                f"exactlyOnce=true needs brokers with transaction.version={_NEEDED_VERSION} or above, but the cluster "
                f"has {version}. Upgrade it (Kafka 4.0, then kafka-features.sh upgrade), or remove exactlyOnce"
            )
        for timeout_ms in self._timeouts:
            try:
                return self._init(transactional_id, timeout_ms), timeout_ms
            except KafkaError as error:
                if error.code != ErrorCode.invalid_transaction_timeout:
                    raise
        raise OptionError(
            f"kafka.{_TIMEOUT}={self._timeouts[-1]} exceeds the limit of the brokers, transaction.max.timeout.ms"
        )

    def _init(self, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
        return self._ask(lambda admin: admin.init(transactional_id, timeout_ms))

    def latest_decision(self) -> BatchDecision | None:
        offsets = self._ask(lambda admin: admin.committed(self._group))
        return decode_decision([each.metadata for each in offsets.values()], self._group)

    def record(self, driver: OpenTransaction, decision: BatchDecision) -> ProducerIdentity:
        offsets = {
            TopicPartition(self._topic, number): OffsetAndMetadata(decision.batch, text)
            for number, text in enumerate(encode_decision(decision))
        }
        self._ask(lambda admin: admin.commit_offsets(driver, self._group, offsets))
        return self.end(driver, commits=True)

    def end(self, transaction: OpenTransaction, *, commits: bool) -> ProducerIdentity:
        return self._ask(lambda admin: admin.end(transaction, commits=commits))

    def end_all(
        self, transactions: Iterable[OpenTransaction], *, commits: bool
    ) -> Mapping[OpenTransaction, KafkaError | None]:
        return self._ask(lambda admin: admin.end_all(transactions, commits=commits))

    def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription]:
        return self._ask(lambda admin: admin.describe(transactional_ids))

    def list_open(self, pattern: str) -> Sequence[str]:
        return self._ask(lambda admin: admin.list_open(pattern))

    def _ask(self, ask: Callable[[TransactionAdmin], Coroutine[Any, Any, T]]) -> T:
        return producer_access.ask_coordinators(self._producer, ask)
