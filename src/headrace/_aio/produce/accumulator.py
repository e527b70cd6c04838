"""Collects records into batches.

    open      takes records. One for each partition; `OpenBatches`, natively
    closed    full, or due: linger.ms has passed, memory is short, or a flush is pending. The sender takes it
    done      delivered or failed

`send()` appends to an open batch natively, without this module. The steps that happen once per batch are here: waiting
for metadata and memory, closing the full batch, choosing the next partition for records without a key.

Any thread may append, and the sender closes batches that are due. `lock` guards the cluster view and everything here,
except for the open batches themselves and `incomplete`, for which the GIL suffices: a native append is one step, and so
is a copy of the dictionary. An open batch is only taken out under `lock`, and enters `_closed` in the same step, so the
batches of a partition keep their order.

With linger.ms=0, records of partitions that are lent (`direct.py`) are sent without anything here, natively. Whatever
puts a batch into `_opened` or `_closed` ends the loan of its partition first, under `lock`.

Ctrl-C can interrupt a user's thread between any two steps. The steps are in an order that leaves no record behind: a
batch is in `_opened` before it takes records, and in `_closed` before it is taken out. So a batch can be in `_closed`
twice, or be empty; `take_closed` sorts that out on the producer's thread, where nothing interrupts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ..._machines.cluster import Cluster
from ..._protocol.codes import kafka_error
from ..._record_batch import BufferMemory, Delivery, DirectPartition, MemoryReservation, OpenBatches, ProducerBatch
from ...config.producer import ProducerConfig
from ...errors import AuthorizationError, ConfigError, HeadraceError, RequestTimeoutError
from ...types import TopicPartition
from ..flag import Flag
from .blocked_calls import BlockedCalls
from .counts import SendCounts
from .delivery import DeliveryWaiting
from .record_limits import RecordLimits
from .topic_batches import TopicBatches

_HASHES = {"default": "murmur2", "murmur2_random": "murmur2", "consistent_random": "crc32"}
_GROWTH = 32  # how many times batch.size a batch may have while others wait to be sent
_FULL = 0.75  # of buffer.memory: above it, blocked `send` calls are not woken
_LONGEST_WAIT = 0.05  # seconds after which blocked `send` calls are woken nevertheless


class Accumulator:
    """`wake` wakes the sender, from any thread. `queue_lengths` returns the number of waiting batches for each
    partition of a topic, `unavailable` the partitions whose leader accepts none.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self.lock = threading.Lock()
        self.cluster = Cluster()
        self.waiting = DeliveryWaiting()
        self.memory = BufferMemory(config.buffer_memory)
        self.limits = RecordLimits(config)
        self.open: dict[str, OpenBatches] = {}  # by topic: the hot path of send()
        self.key_hash = "none" if config.partitioner_ignore_keys else _HASHES[config.partitioner]
        # Not done, the oldest first. True: the sender has it.
        self.incomplete: dict[ProducerBatch, bool] = {}
        self.obstacle: HeadraceError | None = None  # why no broker accepts requests; a retry does not help
        self.silence: Callable[[], str] = self.waiting.silence  # why nothing is acknowledged
        self.wake: Callable[[], None] = lambda: None
        self.queue_lengths: Callable[[str], Mapping[int, int]] = lambda topic: {}
        self.unavailable: Callable[[str, float], Collection[int]] = lambda topic, since: ()
        self.pending: Callable[[str, int], int] = lambda topic, partition: 0
        self.sent_directly: Callable[[], list[ProducerBatch]] = list
        self.watch: Callable[[ProducerBatch], None] | None = None  # wants to know of each batch: see `telemetry.py`
        self.metadata_version = 0
        self.has_new_topics = False
        self.records_failed = 0
        self.counts = SendCounts()
        self._config = config
        self._topics: dict[str, TopicBatches] = {}
        self._wanted: set[str] = set()  # topics with waiting callers
        self._closed: list[ProducerBatch] = []
        self._opened: deque[ProducerBatch] = deque()  # the oldest first; some are closed already
        self._ages: deque[ProducerBatch] = deque()  # the oldest first; some are done already
        self._flushes: set[object] = set()
        self._blocked = BlockedCalls()
        self._refusal: Callable[[], HeadraceError] | None = None  # why no records are accepted

    # -- appending, on the user's threads --------------------------------------------------------------------------

    def append(
        self, topic: str, value: Any, key: Any, headers: Any, timestamp: int | None, partition: int | None, since: int
    ) -> Delivery | Flag:
        """The delivery, or a flag to wait for before the next attempt. `since` is the metadata version that the first
        attempt found; errors of a topic count only if they are newer."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            batches = self._topics.get(topic)
            if batches is None:
                return self._learn(topic, since)
            while True:
                delivery = batches.open.append(value, key, headers, timestamp, partition)
                if delivery is not None:
                    break
                size = OpenBatches.largest_size(value, key, headers)
                self.limits.check(size)
                if partition is not None and not 0 <= partition < len(batches.open):
                    return self._learn_partition(topic, partition, len(batches.open), since)
                if self.memory.used and self.memory.used + size > self.memory.limit:
                    return self._wait_for_memory()
                self._open_batch(batches, batches.open.partition(key) if partition is None else partition)
        self.wake()
        return delivery

    def _open_batch(self, batches: TopicBatches, partition: int | None) -> None:
        """Under `lock`. `partition` is None if the record has no key that chooses one."""
        now = time.monotonic()
        batches.last_used = now
        if partition is None:
            current = batches.open.sticky
            if current is not None:
                if batches.count_direct(current) and batches.open.is_direct(batches.draw()):
                    return
                self._close_open(batches, current, is_full=True)
            partition = batches.draw()
            if batches.open.get(partition) is not None:
                return
        else:
            self._close_open(batches, partition, is_full=True)
        batch = ProducerBatch(batches.name, partition, self._batch_limit(batches, partition), now, self.waiting)
        if self.watch is not None:
            self.watch(batch)
        self._opened.append(batch)
        self.incomplete[batch] = False
        self._ages.append(batch)
        self.wake()  # before it takes records, which do not wake the sender again
        batches.open.put(partition, batch)

    def _batch_limit(self, batches: TopicBatches, partition: int) -> int:
        """batch.size, or more while batches wait to be sent: then larger ones are delivered earlier, because each
        request has one batch of a partition."""
        is_busy = self._closed or self.pending(batches.name, partition)
        return self.largest_batch if is_busy else max(1, self._config.batch_size)

    @property
    def largest_batch(self) -> int:
        """The size of a batch when there are more records than can be sent at once."""
        size = self._config.batch_size
        return max(1, size, min(size * _GROWTH, self._config.max_request_size // 2))

    def _close_open(self, batches: TopicBatches, partition: int, *, is_full: bool) -> None:
        """Under `lock`."""
        batches.open.end_direct(partition)
        batch = batches.open.get(partition)
        if batch is None:
            return
        self._closed.append(batch)
        batches.open.take(partition)
        batches.closed(batch, is_full=is_full)

    def add_encoded(self, batches: Iterable[ProducerBatch], room: MemoryReservation) -> None:
        """Adds batches that were encoded elsewhere, after all records that were appended before. Their memory is a part
        of `room`."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            for batch in batches:
                topic = self._topics.get(batch.topic)
                if topic is not None:
                    self._close_open(topic, batch.partition, is_full=True)
                if self.watch is not None:
                    self.watch(batch)
                self._ages.append(batch)
                self._closed.append(batch)
                self.incomplete[batch] = False  # an interrupt cannot come before the next step
                room.hand_over(batch.size)
        self.wake()

    # -- waiting for metadata and memory, on the user's threads ----------------------------------------------------

    def know_topic(self, topic: str, since: int) -> Flag | None:
        """None if the topic's partitions are known, otherwise a flag to wait for. `since`: see `append`."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            return None if topic in self._topics else self._learn(topic, since)

    def know_partition(self, topic: str, partition: int, since: int) -> Flag | None:
        """A flag to wait for if metadata that is newer than `since` may have the partition. None if it is known now, or
        if the topic does not have it."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            batches = self._topics.get(topic)
            is_settled = partition < 0 or (batches is not None and partition < len(batches.open))
            return None if is_settled or self.metadata_version > since else self._wait_for_metadata(topic)

    def reserve(self, room: MemoryReservation, least: int, most: int) -> Flag | None:
        """None if `room` has at least `least` bytes of buffer.memory now, and up to `most`; otherwise a flag to wait
        for. Whoever waits must have released its room, since others may wait for that."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            return None if room.grow(least, most) else self._wait_for_memory()

    def release(self, room: MemoryReservation) -> None:
        """Others may use it."""
        if room.held:
            room.release()
            self.release_waiters()

    def _learn(self, topic: str, since: int) -> Flag:
        """Under `lock`."""
        if self.obstacle is not None:
            raise self.obstacle.with_traceback(None)
        if self.metadata_version > since and (error := self._topic_error(topic)) is not None:
            self._wanted.discard(topic)
            raise error
        return self._wait_for_metadata(topic)

    def _learn_partition(self, topic: str, partition: int, count: int, since: int) -> Flag:
        """Under `lock`. The topic may have new partitions that are not known here yet."""
        if self.metadata_version > since or partition < 0:
            known = "partition 0" if count == 1 else f"partitions 0 to {count - 1}"
            raise ConfigError(
                f"{topic} has no partition {partition}, only {known}: name no partition, or add partitions to the topic"
            )
        return self._wait_for_metadata(topic)

    def _wait_for_metadata(self, topic: str) -> Flag:
        self._wanted.add(topic)
        self.has_new_topics = True
        flag = self._blocked.on_metadata()
        self.wake()
        return flag

    def _topic_error(self, topic: str) -> HeadraceError | None:
        """Under `lock`."""
        code = self.cluster.topic_errors.get(topic)
        if code is None or self.cluster.is_unknown(topic):
            return None
        error = kafka_error(code, f"cannot write to topic {topic}", _ADVICE.get(code))
        if error.retriable:
            return None
        if isinstance(error, AuthorizationError):
            error.topics = frozenset({topic})
        return error

    def _wait_for_memory(self) -> Flag:
        flag = self._blocked.on_memory(time.monotonic())
        self.wake()
        return flag

    def timeout_error(self, topic: str, partition: int | None = None, timeout: float | None = None) -> HeadraceError:
        """The error when max.block.ms, or the timeout instead, has passed before the record could be appended.
        `partition` is its own, if it has one."""
        limit = f"within max.block.ms={self._config.max_block_ms}" if timeout is None else "yet"
        with self.lock:
            is_known = topic in self._topics
            count = len(self._topics[topic].open) if is_known else 0
            code = self.cluster.topic_errors.get(topic)
            if not is_known:
                self._wanted.discard(topic)
        if is_known and partition is not None and partition >= count:
            return RequestTimeoutError(
                f"{topic} had {count} partitions, and whether it has a partition {partition} now is not known {limit}: "
                "no broker has answered"
            )
        if is_known:
            return RequestTimeoutError(
                f"no room for a record to topic {topic} {limit}: buffer.memory={self.memory.limit} is full of records "
                f"that no broker has acknowledged ({self.silence()})"
            )
        if code is not None:
            return RequestTimeoutError(f"topic {topic} is not there {limit}: {kafka_error(code, 'Metadata')}")
        return RequestTimeoutError(f"no metadata of topic {topic} {limit}: {self.silence()}")

    # -- metadata, on the producer's thread ------------------------------------------------------------------------

    def topics(self, now: float) -> set[str]:
        """The topics whose metadata is needed."""
        idle = self._config.metadata_max_idle_ms / 1000
        with self.lock:
            self.has_new_topics = False
            busy = {batch.topic for batch in list(self.incomplete)}
            for name in [name for name, each in self._topics.items() if each.last_used + idle < now]:
                if name not in busy:
                    del self._topics[name]
                    self.open.pop(name, None)
            return self._wanted | self._topics.keys()

    def metadata_changed(self) -> None:
        """Called by the client, with `lock` held."""
        self.metadata_version += 1
        for name in self._wanted | self._topics.keys():
            self._follow_topic(name)
        for flag in self._blocked.take_metadata():
            flag.set()

    def _follow_topic(self, name: str) -> None:
        topic = self.cluster.topics.get(name)
        if topic is None or not topic.partitions:
            return
        count = max(topic.partitions) + 1
        batches = self._topics.get(name)
        if batches is None or count < len(batches.open):  # fewer partitions: the topic was recreated
            if batches is not None:
                self._close_topic(batches)
            batches = self._new_topic(name, count)
        batches.follow(topic, self.cluster)

    def _new_topic(self, name: str, count: int) -> TopicBatches:
        open_batches = OpenBatches(count, self.key_hash, self.memory, self._config.max_request_size)
        batches = TopicBatches(name, open_batches, self._config, self.queue_lengths, self.unavailable)
        self._topics[name] = batches
        self._wanted.discard(name)
        if self._refusal is None:
            self.open[name] = batches.open
        return batches

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a known topic."""
        with self.lock:
            self._topics[topic].last_used = time.monotonic()
            return len(self._topics[topic].open)

    def draw_partitions(self, topic: str, count: int) -> list[int]:
        """Sticky partitions for the next `count` batches of records without a key."""
        with self.lock:
            return self._topics[topic].draw_many(count)

    # -- the sender, on the producer's thread ----------------------------------------------------------------------

    def take_closed(self, now: float) -> tuple[list[ProducerBatch], float | None]:
        """The batches to send, in the order in which they were closed, and when the next one is due."""
        linger = self._config.linger_ms / 1000
        is_urgent = bool(self._flushes or self._blocked.since is not None)
        with self.lock:
            while self._opened:
                batch = self._opened[0]
                if not is_urgent and batch.created + linger > now and self._is_open(batch):
                    break
                self._opened.popleft()
                if self._is_open(batch):
                    self._close_open(self._topics[batch.topic], batch.partition, is_full=False)
                else:
                    self._closed.append(batch)
            closed, self._closed = self._closed, []
            due = self._opened[0].created + linger if self._opened else None
            return [batch for batch in closed if self._hand_over(batch)], due

    def _hand_over(self, batch: ProducerBatch) -> bool:
        """Under `lock`. False if the sender has the batch already, or if it is empty."""
        if self.incomplete.get(batch, True):
            return False
        if self._is_open(batch):
            self._topics[batch.topic].open.take(batch.partition)
        if not len(batch):
            del self.incomplete[batch]
            return False
        self.incomplete[batch] = True
        return True

    def _is_open(self, batch: ProducerBatch) -> bool:
        topic = self._topics.get(batch.topic)
        return topic is not None and topic.open.get(batch.partition) is batch

    def done(self, batch: ProducerBatch, size: int) -> None:
        """The batch was delivered or has failed. `size` is its memory."""
        self.incomplete.pop(batch, None)
        self.memory.release(size)

    def lend(self, tp: TopicPartition, direct: DirectPartition) -> bool:
        """Records of the partition are sent directly from now on, until a batch of it is opened or closed. False if
        there is one already."""
        with self.lock:
            batches = self._topics.get(tp.topic)
            is_closed = any((each.topic, each.partition) == tp for each in self._closed)
            if batches is None or self._refusal is not None or is_closed or batches.open.get(tp.partition) is not None:
                return False
            batches.open.lend(tp.partition, direct)
            return True

    def take_over(self, batch: ProducerBatch) -> None:
        """The batch was sent directly, and the sender has it now."""
        self.incomplete[batch] = True
        self.oldest()  # forgets the batches that are done. No `pump` may run for minutes, which does so otherwise
        self._ages.append(batch)
        if (topic := self._topics.get(batch.topic)) is not None:
            topic.last_used = time.monotonic()

    def touch(self, topics: Iterable[str]) -> None:
        """Records are sent directly to these topics."""
        with self.lock:
            for name in topics:
                if name in self._topics:
                    self._topics[name].last_used = time.monotonic()

    def not_done(self) -> list[ProducerBatch]:
        """The batches with records that are neither delivered nor given up. From any thread."""
        return [batch for batch in (*self.sent_directly(), *list(self.incomplete)) if len(batch)]

    def count_incomplete(self) -> int:
        """The number of batches that are neither delivered nor given up."""
        return len(self.not_done())

    def oldest(self) -> ProducerBatch | None:
        """The oldest batch that is not done."""
        while self._ages and self._ages[0] not in self.incomplete:
            self._ages.popleft()
        return self._ages[0] if self._ages else None

    def split(self, batch: ProducerBatch, parts: Iterable[ProducerBatch]) -> None:
        """Replaces a batch that was too large by its parts."""
        for part in parts:
            self.memory.take(part.size)
            self.incomplete[part] = True
            self._ages.appendleft(part)
        self.done(batch, batch.size)

    @property
    def release_at(self) -> float | None:
        """When `release_waiters` must be called, even if no broker responds."""
        return None if self._blocked.since is None else self._blocked.since + _LONGEST_WAIT

    def release_waiters(self, *, metadata: bool = False) -> None:
        """Wakes waiting callers when there is memory again, or an error for those that wait for metadata. Callers that
        wait for memory are not woken for every small batch, since a woken thread takes the interpreter from the
        sender. But batches for an unresponsive broker may take most of the memory, so the rest must be used."""
        since = self._blocked.since
        is_scarce = self.incomplete and self.memory.used > _FULL * self.memory.limit
        if is_scarce and not metadata and time.monotonic() < (since or 0.0) + _LONGEST_WAIT:
            return
        with self.lock:
            waiters = self._blocked.take_memory() + (self._blocked.take_metadata() if metadata else [])
        for flag in waiters:
            flag.set()

    # -- flush and the end -----------------------------------------------------------------------------------------

    def begin_flush(self, flush: object) -> list[ProducerBatch]:
        """The batches that are not done yet. Until `end_flush`, none of them lingers. `flush` identifies the call:
        after an interrupt (Ctrl-C), the caller ends it even if it has not begun.
        """
        with self.lock:
            self._flushes.add(flush)
            pending = self.not_done()
        self.wake()
        return pending

    def end_flush(self, flush: object) -> None:
        with self.lock:
            self._flushes.discard(flush)

    def accept(self) -> None:
        """Accepts records again, after `refuse`."""
        with self.lock:
            self._refusal = None
            self.open.update((name, batches.open) for name, batches in self._topics.items())

    def refuse(self, error: Callable[[], HeadraceError]) -> None:
        """Accepts no more records: `send` raises this error. Accepted records are still sent."""
        with self.lock:
            self._refusal = error
            self.open.clear()
            for batches in self._topics.values():
                self._close_topic(batches)
            waiters = self._blocked.take_metadata() + self._blocked.take_memory()
        for flag in waiters:
            flag.set()
        self.wake()

    def _close_topic(self, batches: TopicBatches) -> None:
        for partition in range(len(batches.open)):
            self._close_open(batches, partition, is_full=False)

    def fail(self, batch: ProducerBatch, error: HeadraceError) -> None:
        """On the producer's thread. In a transaction, its end reports the error to the user."""
        self.records_failed += len(batch)
        if self._config.transactional_id is None:
            self.waiting.failed(error)
        self.done(batch, batch.size)
        for flag in batch.fail(error):
            flag.set()

    def fail_all(self, error: HeadraceError) -> None:
        """All records that are not delivered have failed."""
        self.refuse(lambda: error.with_traceback(None))
        for batch in list(self.incomplete):
            if len(batch) and not batch.is_done:
                self.fail(batch, error)


_ADVICE = {29: "add an ACL that allows this client the operations Write and Describe"}
