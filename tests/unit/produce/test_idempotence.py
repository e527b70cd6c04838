"""PartitionBatches against a model of the broker, over a network that loses, delays and repeats requests."""

from __future__ import annotations

import dataclasses
import os
import random
from collections import deque

import pytest
from kio.schema.errors import ErrorCode

from headrace._machines.produce.idempotence import BatchOutcome, PartitionBatches, ProducerIdentity, SentBatch

OK, OOO, EPOCH = ErrorCode.none, ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_producer_epoch
RETRY, TOO_LARGE, DENIED = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.message_too_large,
    ErrorCode.topic_authorization_failed,
)
FIRST = ProducerIdentity(7, 0)
SECOND = ProducerIdentity(7, 1)


def queue(*batches: str, max_in_flight: int = 5) -> PartitionBatches[str]:
    """Each batch is a string, its records are the letters. The broker already knows the producer id."""
    made: PartitionBatches[str] = PartitionBatches(max_in_flight)
    made._known_id = FIRST.producer_id
    for batch in batches:
        made.append(batch)
    return made


def take(batches: PartitionBatches[str], identity: ProducerIdentity = FIRST) -> SentBatch[str]:
    sent = batches.take_next(identity)
    assert sent is not None
    return sent


# -- single rules --------------------------------------------------------------------------------------------------


def test_sequence_numbers_count_the_records() -> None:
    batches = queue("abc", "d", "ef")
    assert [take(batches).sequence for _ in range(3)] == [0, 3, 4]


def test_the_first_batch_with_a_new_producer_id_is_sent_alone() -> None:
    """A broker that does not know the id would append the second batch although it rejected the first."""
    batches = queue(*"abcd")
    another, next_epoch = ProducerIdentity(8, 0), ProducerIdentity(8, 1)
    first = take(batches, another)
    assert batches.take_next(another) is None
    assert batches.answered(first, RETRY) is BatchOutcome.RETRY
    assert take(batches, another) is first
    assert batches.take_next(another) is None
    assert batches.answered(first, OK) is BatchOutcome.DONE
    second = take(batches, another)
    assert batches.answered(second, OK) is BatchOutcome.DONE
    assert [take(batches, next_epoch).batch, take(batches, next_epoch).batch] == ["c", "d"], "the broker knows the id"


def test_no_more_than_five_batches_are_in_flight() -> None:
    batches = queue(*"abcdefg")
    sent = [take(batches) for _ in range(5)]
    assert batches.take_next(FIRST) is None
    assert batches.answered(sent[0], OK) is BatchOutcome.DONE
    assert take(batches).batch == "f"


def test_no_batch_is_the_sixth_from_the_lowest_one_that_is_not_done() -> None:
    """The lowest one may have been appended, and the broker would have forgotten it."""
    batches = queue(*"abcdefg")
    sent = [take(batches) for _ in range(5)]
    assert batches.answered(sent[0], RETRY) is BatchOutcome.RETRY
    assert batches.answered(sent[1], OK) is BatchOutcome.DONE
    assert batches.take_next(FIRST) is sent[0]
    assert batches.take_next(FIRST) is None, "although four are in flight"
    batches.answered(sent[0], OK)
    assert [take(batches).batch for _ in range(2)] == ["f", "g"]


def test_only_the_lowest_batch_is_retried_and_nothing_new_is_sent() -> None:
    batches = queue(*"abcd")
    a, b, c = (take(batches) for _ in range(3))
    batches.unanswered(b)
    assert batches.take_next(FIRST) is None, "a is in flight"
    batches.unanswered(a)
    assert take(batches) is a
    assert batches.answered(c, OOO) is BatchOutcome.RETRY
    assert not batches.needs_epoch, "c was out of order only because b is missing"
    assert batches.answered(a, OK) is BatchOutcome.DONE
    assert take(batches) is b
    assert (b.sequence, b.attempts) == (1, 2)


def test_a_gap_in_the_log_needs_a_new_epoch_in_which_all_begin_at_0() -> None:
    batches = queue("ab", "c", "d")
    first, second = take(batches), take(batches)
    assert batches.answered(first, OOO) is BatchOutcome.RETRY
    assert not batches.needs_epoch, "the second batch is still in flight"
    assert batches.take_next(FIRST) is None
    assert batches.answered(second, OOO) is BatchOutcome.RETRY
    assert batches.needs_epoch
    batches.begin_epoch(SECOND)
    assert (first.identity, first.sequence, second.sequence) == (SECOND, 0, 2)
    assert take(batches, SECOND) is first


def test_a_batch_that_fails_at_once_gives_its_numbers_back() -> None:
    batches = queue("a", "bad", "c")
    assert batches.answered(take(batches), OK) is BatchOutcome.DONE
    assert batches.answered(take(batches), DENIED) is BatchOutcome.FAILED
    assert not batches.needs_epoch
    assert take(batches).sequence == 1


def test_a_batch_that_may_have_been_appended_does_not_give_its_numbers_back() -> None:
    batches = queue("ab", "cd")
    sent = take(batches)
    batches.unanswered(sent)
    assert batches.answered(take(batches), DENIED) is BatchOutcome.FAILED
    assert take(batches).sequence == 2, "with the same sequence it would look like a duplicate of the first"


@pytest.mark.parametrize("ends", ["fails", "expires"])
def test_the_next_batch_finds_out_whether_the_broker_has_one_that_is_given_up(ends: str) -> None:
    for answer, needs_epoch in ((OK, False), (OOO, True)):
        batches = queue("a", "b", "c")
        a, b = take(batches), take(batches)
        if ends == "fails":
            assert batches.answered(a, DENIED) is BatchOutcome.FAILED
        else:
            batches.expire("a")
        batches.answered(b, answer)
        assert batches.needs_epoch is needs_epoch


def test_the_answer_to_an_expired_batch_changes_nothing() -> None:
    for answer, outcome in ((OK, BatchOutcome.DONE), (EPOCH, BatchOutcome.FAILED), (OOO, BatchOutcome.FAILED)):
        batches = queue("ab", "c")
        sent = take(batches)
        batches.expire("ab")
        assert batches.answered(sent, answer) is outcome
        assert not batches.needs_epoch
        assert take(batches).sequence == 2


def test_a_batch_that_expired_before_it_was_sent_has_no_numbers() -> None:
    batches = queue("ab", "c")
    batches.expire("ab")
    assert take(batches).sequence == 0
    assert len(batches) == 1


def test_the_parts_of_a_batch_share_its_numbers_and_come_in_order() -> None:
    batches = queue("abcd", "e")
    whole, after = take(batches), take(batches)
    assert batches.answered(whole, TOO_LARGE) is BatchOutcome.SPLIT
    batches.split(whole, ["ab", "cd"])
    assert batches.answered(after, OOO) is BatchOutcome.RETRY
    for batch, sequence in (("ab", 0), ("cd", 2), ("e", 4)):
        part = take(batches)
        assert (part.batch, part.sequence) == (batch, sequence)
        assert batches.take_next(FIRST) is None
        assert batches.answered(part, OK) is BatchOutcome.DONE
    assert len(batches) == 0


def test_a_single_record_that_is_too_large_fails() -> None:
    batches = queue("a")
    assert batches.answered(take(batches), TOO_LARGE) is BatchOutcome.FAILED


def test_the_next_identity_waits_until_the_batches_of_the_last_one_are_done() -> None:
    batches = queue("a", "b")
    a = take(batches)
    assert batches.take_next(SECOND) is None, "another partition has started an epoch"
    assert batches.answered(a, OK) is BatchOutcome.DONE
    b = take(batches, SECOND)
    assert (b.identity, b.sequence) == (SECOND, 0)


def test_sequence_numbers_are_lent_while_nothing_is_to_be_sent() -> None:
    batches = queue("abc")
    assert batches.lend(FIRST) is None
    sent = take(batches)
    assert batches.lend(FIRST) is None
    batches.answered(sent, OK)
    assert batches.lend(FIRST) == 3
    batches.take_back(5, is_known=True)
    batches.append("d")
    assert take(batches).sequence == 5


def test_a_batch_on_the_wire_is_adopted_with_its_sequence_number() -> None:
    batches = queue("abc")
    batches.answered(take(batches), OK)
    assert batches.lend(FIRST) == 3
    batches.take_back(4, is_known=True)  # one was delivered, and the next one has number 4
    adopted = batches.adopt("e")
    batches.append("f")
    assert (adopted.sequence, take(batches).sequence) == (4, 5)
    assert batches.answered(adopted, RETRY) is BatchOutcome.RETRY
    assert batches.take_next(FIRST) is adopted
    assert (adopted.sequence, adopted.attempts) == (4, 2)


def test_sequence_numbers_wrap_to_0() -> None:
    batches = queue("ab", "c")
    batches._identity, batches._next = FIRST, 2**31 - 1
    assert [take(batches).sequence, take(batches).sequence] == [2**31 - 1, 1]


# -- random simulation ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Broker:
    """The producer state of one partition, as in Kafka 4.3.1."""

    log: list[str] = dataclasses.field(default_factory=list)
    epoch: int = -1
    last: int = -1
    recent: deque[tuple[int, int]] = dataclasses.field(default_factory=lambda: deque(maxlen=5))

    def append(self, batch: str, epoch: int, sequence: int, most: int) -> int:
        if epoch < self.epoch:
            return EPOCH
        end = sequence + len(batch) - 1
        if epoch == self.epoch and (sequence, end) in self.recent:
            return OK
        if sequence != (0 if epoch > self.epoch else self.last + 1):
            return OOO
        if len(batch) > most:
            return TOO_LARGE
        if epoch > self.epoch:
            self.recent.clear()
        self.epoch, self.last = epoch, end
        self.recent.append((sequence, end))
        self.log += batch
        return OK


@dataclasses.dataclass
class Request:
    sent: SentBatch[str]
    epoch: int
    sequence: int
    is_awaited: bool = True


class World:
    """One partition, its producer and its broker. Every record is a distinct letter."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.broker = Broker()
        self.batches: PartitionBatches[str] = PartitionBatches()
        self.epoch = 0
        self.requests: list[Request] = []  # not arrived yet; those of a lost connection may still arrive
        self.answers: list[tuple[Request, int]] = []
        self.written = 0
        self.done: list[str] = []
        self.failed: set[str] = set()
        self.open: list[str] = []
        self.denies = self.dice.random() < 0.3
        self.lends = self.dice.random() < 0.5
        self.lent: int | None = None  # the next sequence number, while batches are sent directly
        self.direct: Request | None = None  # the one that is on its way then
        self.has_delivered = False

    def step(self) -> None:
        self.dice.choice(
            [self.write, self.send, self.send, self.arrive, self.arrive, self.answer, self.answer, self.disconnect]
            + [self.expire] * (self.dice.random() < 0.2)
            + [self.send_directly] * 3 * self.lends
        )()

    def write(self) -> None:
        if self.written < 60:
            self.settle()
            self.batches.append(self.new_batch(self.dice.randrange(1, 5)))

    def new_batch(self, count: int) -> str:
        batch = "".join(chr(0x4E00 + self.written + each) for each in range(count))
        self.written += count
        self.open.append(batch)
        return batch

    def send_directly(self) -> None:
        identity = ProducerIdentity(7, self.epoch)
        if self.lent is None:
            self.lent, self.has_delivered = self.batches.lend(identity), False
        elif self.direct is None and self.written < 60:
            sent = SentBatch(self.new_batch(1), identity, self.lent)
            self.direct = Request(sent, identity.epoch, self.lent)
            self.requests.append(self.direct)
            self.lent += 1

    def settle(self) -> None:
        if self.lent is not None:
            sequence = self.lent if self.direct is None else self.direct.sequence
            self.batches.take_back(sequence, is_known=self.has_delivered)
            if self.direct is not None:
                self.direct.sent = self.batches.adopt(self.direct.sent.batch)
            self.lent = self.direct = None

    def send(self) -> None:
        if self.batches.needs_epoch:
            self.epoch += 1
            self.batches.begin_epoch(ProducerIdentity(7, self.epoch))
        sent = self.batches.take_next(ProducerIdentity(7, self.epoch))
        if sent is not None:
            self.requests.append(Request(sent, sent.identity.epoch, sent.sequence))

    def arrive(self) -> None:
        if self.requests:
            request = self.requests.pop(0)
            if self.denies and self.dice.random() < 0.2:
                code: int = DENIED
            else:
                most = self.dice.choice([1, 2, 9])
                code = self.broker.append(request.sent.batch, request.epoch, request.sequence, most)
                if code == OK and self.dice.random() < 0.1:
                    code = RETRY  # appended, but the response is an error: not enough replicas, or a timeout
            if request.is_awaited:
                self.answers.append((request, code))

    def answer(self) -> None:
        if self.answers:
            request, code = self.answers.pop(0)
            if request is self.direct:
                if code == OK:
                    self.direct, self.has_delivered = None, True
                    self.open.remove(request.sent.batch)
                    self.done += request.sent.batch
                    return
                self.settle()
            sent = request.sent
            is_open = sent.batch in self.open
            outcome = self.batches.answered(sent, code)
            if outcome is BatchOutcome.SPLIT:
                half = len(sent.batch) // 2
                parts = [sent.batch[:half], sent.batch[half:]]
                self.batches.split(sent, parts)
                at = self.open.index(sent.batch)
                self.open[at : at + 1] = parts
            elif is_open and outcome in (BatchOutcome.DONE, BatchOutcome.FAILED):
                self.open.remove(sent.batch)
                if outcome is BatchOutcome.DONE:
                    self.done += sent.batch
                else:
                    self.failed |= set(sent.batch)

    def disconnect(self) -> None:
        """Drop all pending responses. Requests already sent may still arrive, even after later ones."""
        if self.dice.random() < 0.3:
            self.settle()
            pending = [each for each in self.requests if each.is_awaited] + [each for each, _ in self.answers]
            for request in pending:
                request.is_awaited = False
                self.batches.unanswered(request.sent)
            self.answers.clear()
            self.requests = [each for each in self.requests if self.dice.random() < 0.5]
            if self.dice.random() < 0.5 and len(self.requests) > 1:
                self.requests.append(self.requests.pop(0))

    def expire(self) -> None:
        if self.open:
            self.settle()
            batch = self.dice.choice(self.open)
            self.open.remove(batch)
            self.failed |= set(batch)
            self.batches.expire(batch)

    def check(self) -> None:
        assert len(set(self.broker.log)) == len(self.broker.log), "a record is in the log twice"
        assert self.broker.log == sorted(self.broker.log), "the records are out of order"
        assert set(self.done) <= set(self.broker.log), "an acknowledged record is lost"

    def finish(self) -> None:
        """Without further faults, every batch must complete."""
        self.denies = False
        self.settle()
        for _ in range(5000):
            if not self.open and not self.requests and not self.answers:
                break
            self.send()
            self.arrive()
            self.answer()
        assert not self.open, "a batch is stuck"
        assert set(self.broker.log) | self.failed == {chr(0x4E00 + each) for each in range(self.written)}


@pytest.mark.parametrize("part", range(4))
def test_no_record_is_lost_doubled_or_out_of_order_whatever_the_network_does(part: int) -> None:
    for seed in range(part, 40_000 if os.environ.get("SOAK") else 2_000, 4):
        world = World(seed)
        try:
            for _ in range(world.dice.randrange(20, 300)):
                world.step()
                world.check()
            world.finish()
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
