"""`Coordination` by the brokers of a cluster: transactions, and decisions in the metadata of committed offsets.

The group of the offsets is the sink id. Brokers accept offsets only for partitions that exist, and drop those of
deleted topics. So decisions are recorded under Kafka's own topic __consumer_offsets, which is never deleted and has 50
partitions by default, unless the option decisionTopic names another one.

All topics of the group are read, to notice that the option was changed. But brokers leave out those that the client may
not read. So if there is no decision, more requests find out whether one is hidden.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from ..._aio.produce.transaction_admin import TransactionAdmin
from ..._machines.produce.idempotence import ProducerIdentity
from ..._machines.produce.open_transaction import OpenTransaction, TransactionDescription
from ...errors import AuthorizationError, KafkaError, UnsupportedVersionError
from ...sync.producer import Producer
from ...types import OffsetAndMetadata, TopicPartition
from .. import producer_access
from ..options.parsers import OptionError
from ..options.sink import SinkOptions
from .protocol import BatchDecision, SinkError, encode_decision
from .verdicts import FoundDecisions, judge_found

T = TypeVar("T")

_TIMEOUT = "transaction.timeout.ms"
# The first one is the default of transaction.max.timeout.ms. The others are for brokers with a lower limit.
_TIMEOUTS_MS = (900_000, 300_000, 60_000, 10_000)
_NEEDED_VERSION = 2
_INTERNAL_TOPIC = "__consumer_offsets"


class BrokerCoordination:
    """For one call of Spark: uses a producer that the worker process keeps."""

    def __init__(self, producer: Producer, options: SinkOptions) -> None:
        assert options.sink_id is not None
        self._producer = producer
        self._group = options.sink_id
        self._topic = options.decision_topic or _INTERNAL_TOPIC
        given = options.settings.get(_TIMEOUT)
        self._tries_two_phase = given is None
        self._timeouts = _TIMEOUTS_MS if given is None else (int(given),)

    def init(self, transactional_id: str) -> tuple[ProducerIdentity, int | None]:
        version = self._ask(lambda admin: admin.transaction_version(transactional_id))
        if version < _NEEDED_VERSION:
            raise SinkError(
                f"exactlyOnce=true needs brokers with transaction.version={_NEEDED_VERSION} or above, but the cluster "
                f"has {version}. Upgrade it (Kafka 4.0, then kafka-features.sh upgrade), or remove exactlyOnce"
            )
        if self._topic != _INTERNAL_TOPIC and not self._producer.partitions_for_topic(self._topic):
            raise OptionError(f"decisionTopic={self._topic} does not exist. Create it, or remove the option")
        if self._tries_two_phase:
            with contextlib.suppress(UnsupportedVersionError, AuthorizationError):  # the brokers do not allow it
                return self._init(transactional_id, self._timeouts[0], is_two_phase=True), None
        for timeout_ms in self._timeouts:
            try:
                return self._init(transactional_id, timeout_ms), timeout_ms
            except KafkaError as error:
                if error.code != ErrorCode.invalid_transaction_timeout:
                    raise
        raise OptionError(
            f"kafka.{_TIMEOUT}={self._timeouts[-1]} exceeds the limit of the brokers, transaction.max.timeout.ms"
        )

    def _init(self, transactional_id: str, timeout_ms: int, *, is_two_phase: bool = False) -> ProducerIdentity:
        return self._ask(lambda admin: admin.init(transactional_id, timeout_ms, is_two_phase=is_two_phase))

    def latest_decision(self) -> BatchDecision | None:
        try:
            found = self._find_decisions()
        except AuthorizationError as error:
            raise SinkError(
                f"Cannot read the decisions of sinkId={self._group!r}: {error}. Nothing was aborted. Allow this client "
                f"Read on the group {self._group} and on the topic {self._topic}"
            ) from error
        return judge_found(found, self._group, self._topic)

    def _find_decisions(self) -> FoundDecisions:
        visible = self._ask(lambda admin: admin.committed(self._group))
        texts: dict[str, list[str]] = {}
        for tp, offset in visible.items():
            texts.setdefault(tp.topic, []).append(offset.metadata)
        if texts:
            return FoundDecisions({topic: tuple(each) for topic, each in texts.items()})
        try:
            self._ask(lambda admin: admin.committed(self._group, TopicPartition(self._topic, 0)))
        except AuthorizationError as error:
            if error.code != ErrorCode.topic_authorization_failed:
                raise
            can_read_topic = False
        else:
            can_read_topic = True
        return FoundDecisions(
            {},
            can_read_topic,
            group_exists=self._ask(lambda admin: admin.group_exists(self._group)),
            checks_rights=self._ask(lambda admin: admin.checks_rights(self._group)),
        )

    def record(self, driver: OpenTransaction, decision: BatchDecision) -> ProducerIdentity:
        parts = encode_decision(decision)
        if len(parts) > 1:
            self._check_partitions(len(parts), len(decision.transactions))
        offsets = {
            TopicPartition(self._topic, number): OffsetAndMetadata(max(decision.batch, 0), text)
            for number, text in enumerate(parts)
        }
        try:
            self._ask(lambda admin: admin.commit_offsets(driver, self._group, offsets))
        except AuthorizationError as error:
            raise SinkError(
                f"The decision about a batch cannot be recorded: {error}. Allow this client Read on the topic "
                f"{self._topic} and the group {self._group}"
            ) from error
        return self.end(driver, commits=True)

    def _check_partitions(self, needed: int, tasks: int) -> None:
        count = len(self._producer.partitions_for_topic(self._topic))
        if count < needed:
            raise SinkError(
                f"The decision about {tasks} tasks needs {needed} partitions of the topic {self._topic}, which has "
                f"{count}. Set decisionTopic to a topic with more partitions, or write fewer tasks with coalesce()"
            )

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
