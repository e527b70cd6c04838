"""A simulation of transactions: a model of the coordinator and the logs, a faulty network, and a user's program."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable

from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.open_transaction import TransactionDescription
from headrace._machines.produce.transaction import TransactionManager
from headrace._machines.produce.transaction_errors import ErrorEffect, TransactionApi, effect_of
from headrace._machines.produce.transaction_requests import TransactionRequest
from headrace._machines.produce.transaction_states import NextStep, TransactionState
from headrace._protocol.codes import kafka_error
from headrace.errors import HeadraceError, NetworkError, RequestTimeoutError, TransactionError, TransactionFatalError
from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from support.harness.transactional_id import NOBODY, TransactionalId

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
OFFSETS = TopicPartition("offsets of the group", 0)  # also a log, whose records are transaction numbers
S = TransactionState


class Log:
    """A partition. Duplicate records are detected by name, as brokers detect them by sequence number."""

    def __init__(self) -> None:
        self.identity = ProducerIdentity(0, -1)
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.committed: list[str] = []

    def append(self, identity: ProducerIdentity, record: str) -> int:
        if identity < self.identity:
            return E.invalid_producer_epoch
        self.identity = identity
        if record not in self.seen:
            self.seen.add(record)
            self.open.append(record)
        return E.none

    def end(self, identity: ProducerIdentity, commits: bool) -> None:
        self.identity = max(identity, self.identity)
        if commits:
            self.committed += self.open
        self.open = []


class Coordinator:
    """The coordinator of one transactional id, with the logs."""

    def __init__(self, largest_epoch: int, version: Callable[[], int]) -> None:
        self.id = TransactionalId(itertools.count().__next__, largest_epoch, version)
        self.logs = {tp: Log() for tp in (*PARTITIONS, OFFSETS)}

    @property
    def current(self) -> ProducerIdentity:
        return self.id.current

    def complete(self) -> None:
        """Write the markers."""
        if self.id.is_completing:
            for tp in self.id.places:
                self.logs[tp].end(self.id.current, self.id.commits)
            self.id.complete()

    def time_out(self) -> bool:
        if not self.id.is_open:
            return False
        self.id.fence()
        return True

    def append(self, identity: ProducerIdentity, tp: TopicPartition, record: str, version: int) -> int:
        if identity < self.logs[tp].identity:
            return E.invalid_producer_epoch
        code = self.id.add(identity, [tp], version) if version == 2 else self.id.verify(identity, tp)
        if code != E.none:
            return E.invalid_producer_epoch if code == E.producer_fenced else code
        return self.logs[tp].append(identity, record)

    def describe(self) -> TransactionDescription:
        return TransactionDescription(self.id.state, *self.id.current, -1, 60_000)


def error_of(call: Callable[[], None]) -> TransactionError | None:
    try:
        call()
    except TransactionError as error:
        return error
    return None


@dataclasses.dataclass(eq=False)
class Batch:
    partition: TopicPartition
    record: str
    identity: ProducerIdentity | None = None  # set by its first attempt
    is_on_wire: bool = False


@dataclasses.dataclass
class Transaction:
    number: int
    records: set[str] = dataclasses.field(default_factory=set)
    result: str = "open"  # committing, committed, aborted, unknown
    is_broken: bool = False  # a batch failed
    is_commit_lost: bool = False  # an EndTxn(commit) got no response

    def failed(self) -> None:
        """A failed commit is an abort, unless an earlier attempt has reached the coordinator."""
        self.result = "unknown" if self.is_commit_lost else "aborted"


@dataclasses.dataclass
class Rival:
    """A newer producer with the same transactional id."""

    identity: ProducerIdentity
    version: int


class World:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.coordinator = Coordinator(self.dice.choice([3, 30000, 30000]), lambda: self.version)
        self.version = self.dice.choice([1, 2])
        self.is_upgraded = self.dice.random() < 0.5  # at some point
        self.manager = TransactionManager("id", 60_000)
        self.request: TransactionRequest | None = None
        self.batches: list[Batch] = []  # without a response, and not given up
        self.late: list[tuple[object, int]] = []  # delayed requests, with their version
        self.places = {"transaction": 0, "group": 0}
        self.found = dict(self.places)
        self.transactions: list[Transaction] = []
        self.waiting = ""  # the user's pending call; it may have timed out
        self.excuses: set[str] = set()  # reasons that allow a fatal error
        self.danger = self.dice.choice([0.1, 0.4, 1.0])  # the rate of faults
        self.completing = self.dice.choice([0.3, 0.05])  # the rate at which the coordinator completes transactions
        self.lateness = self.dice.choice([0.2, 0.02])  # the rate at which late requests arrive
        self.is_calm = False
        self.is_fenced = False
        self.rival: Rival | None = None
        self.is_described = False  # since the last InitProducerId, and nobody else had an open transaction
        self.is_add_lost = False
        self.is_dead = False

    def chance(self, likely: float) -> bool:
        return not self.is_calm and self.dice.random() < likely * self.danger

    def fate(self) -> float:
        """The fate of a request: 1.0 means no fault."""
        return self.dice.random() if self.chance(1.0) else 1.0

    def step(self) -> None:
        actions = [self.use, self.use, self.send, self.send, self.ask, self.carry, self.carry, self.produce_answer]
        rare = [self.expire, self.move, self.time_out, self.fence, self.compete, self.upgrade]
        if self.chance(0.12):
            self.dice.choice(rare)()
        elif self.chance(self.lateness):
            self.arrive_late()
        elif self.dice.random() < self.completing:
            self.coordinator.complete()
        else:
            self.dice.choice(actions)()

    # -- the user ------------------------------------------------------------------------------------------------

    def use(self) -> None:
        """One step of the user's program. A call that timed out is called again."""
        manager = self.manager
        if self.is_dead:
            return
        if self.waiting:
            getattr(manager, self.waiting)()
            if manager.is_call_done:
                self.returned(self.waiting)
        elif manager.state is S.UNINITIALIZED:
            self.call("init")
        elif manager.state is S.READY:
            manager.begin(self.version)
            self.transactions.append(Transaction(len(self.transactions)))
            self.is_add_lost = False
        elif manager.state is S.ABORTABLE_ERROR:
            self.call("init" if manager.identity is None and self.dice.random() < 0.5 else "abort")
        elif manager.state is S.IN_TRANSACTION:
            self.dice.choice([self.write] * 4 + [self.add_offsets, self.commit, self.commit, self.abort])()
        elif manager.state is S.FATAL_ERROR:
            self.died()

    def call(self, name: str) -> None:
        getattr(self.manager, name)()
        self.waiting = name

    def write(self) -> None:
        transaction = self.transactions[-1]
        if len(transaction.records) < 6:
            batch = Batch(self.dice.choice(PARTITIONS), f"{transaction.number}:{len(transaction.records)}")
            transaction.records.add(batch.record)
            self.batches.append(batch)

    def add_offsets(self) -> None:
        number = self.transactions[-1].number
        self.transactions[-1].records.add(f"offset {number}")
        self.manager.add_offsets(GroupMetadata("g", 1, "m"), {OFFSETS: OffsetAndMetadata(number)})

    def commit(self) -> None:
        self.transactions[-1].result = "committing"
        self.call("commit")

    def abort(self) -> None:
        self.transactions[-1].result = "aborted"
        self.call("abort")

    def returned(self, call: str) -> None:
        self.waiting = ""
        error = error_of(self.manager.end_call)
        if isinstance(error, TransactionFatalError):
            self.died()
            is_unknown = any(each.result == "unknown" for each in self.transactions)
            assert ("unknown whether" in str(error)) == is_unknown, "the user is misled about the outcome"
        elif error is not None and call == "commit":
            self.transactions[-1].failed()
        elif error is None and call != "init" and self.transactions:
            self.transactions[-1].result = "committed" if call == "commit" else "aborted"

    def died(self) -> None:
        self.is_dead = True
        assert self.excuses, f"a fatal error without a reason: {self.manager.cause}"
        if self.transactions and self.transactions[-1].result != "committed":
            self.transactions[-1].failed()

    # -- the sender ----------------------------------------------------------------------------------------------

    def send(self) -> None:
        manager = self.manager
        if manager.state in (S.ABORTABLE_ERROR, S.ABORTING, S.FATAL_ERROR):
            for batch in [each for each in self.batches if not each.is_on_wire]:
                self.give_up(batch, RequestTimeoutError("aborted"))
            return
        idle = [each for each in self.batches if not each.is_on_wire]
        if idle:
            batch = self.dice.choice(idle)
            manager.add_partition(batch.partition)
            if manager.may_send(batch.partition):
                assert batch.identity in (None, manager.identity), "a batch of another epoch"
                batch.identity = manager.identity
                batch.is_on_wire = True

    def give_up(self, batch: Batch, error: HeadraceError) -> None:
        if self.manager.state in (S.IN_TRANSACTION, S.COMMITTING):
            self.transactions[-1].is_broken = True
        self.manager.batch_failed(batch.identity, error)
        self.batches.remove(batch)

    def produce_answer(self) -> None:
        on_wire = [each for each in self.batches if each.is_on_wire]
        if not on_wire:
            return
        batch = self.dice.choice(on_wire)
        version = 2 if self.manager.produce_versions.highest > 11 else 1
        fate = self.fate()
        batch.is_on_wire = False
        if fate < 0.1:  # delayed, and its response is ignored
            self.late.append((dataclasses.replace(batch), version))
            return
        if fate < 0.15:
            return
        code = self.produce(batch, version)
        if self.chance(0.03):
            code = E.message_too_large if batch.record not in self.log(batch).seen else code
        if fate < 0.2:
            return
        if code == E.none:
            self.batches.remove(batch)
        elif effect_of(TransactionApi.PRODUCE, code) is not ErrorEffect.RETRY:
            self.give_up(batch, kafka_error(code, "Produce"))

    def log(self, batch: Batch) -> Log:
        return self.coordinator.logs[batch.partition]

    def produce(self, batch: Batch, version: int) -> int:
        assert batch.identity is not None
        return self.coordinator.append(batch.identity, batch.partition, batch.record, version)

    def expire(self) -> None:
        if self.batches:
            self.give_up(self.dice.choice(self.batches), RequestTimeoutError("delivery timed out"))

    # -- transactional requests ----------------------------------------------------------------------------------

    def ask(self) -> None:
        request = self.manager.take_request(len(self.batches))
        if request is None:
            return
        assert self.request is None, "two requests in flight"
        self.request = request
        if request.api is TransactionApi.INIT_PRODUCER_ID and self.manager.identity is not None:
            assert request.fields["producer_id"] >= 0, "this would fence a newer producer"
        if request.api is TransactionApi.END:
            assert not self.batches, "EndTxn before the responses of all batches"
            if request.fields["committed"]:
                assert self.transactions[-1].result == "committing", "a commit that the user did not request"
                assert not self.transactions[-1].is_broken, "a commit without all records"

    def carry(self) -> None:
        """Deliver the request in flight, or lose it; deliver its response, or lose that."""
        request = self.request
        if request is None:
            return
        self.request = None
        fate = self.fate()
        if request.api is TransactionApi.DESCRIBE:
            self.describe(request, fate)
            return
        # With version 1, the coordinator cannot know which transaction a late EndTxn belongs to.
        if fate < 0.1 and self.may_be_late(request):
            self.is_described = False
            self.late.append((request, request.versions.highest))
            step = self.manager.failed(request, RequestTimeoutError("late"))
        elif fate < 0.15:
            step = self.manager.failed(request, NetworkError("lost"))
        else:
            code, identity = self.handle(request, is_faulty=True)
            if fate < 0.25:
                step = self.manager.failed(request, NetworkError("the response is lost"))
            elif request.api in (TransactionApi.ADD_PARTITIONS, TransactionApi.COMMIT_OFFSETS):
                step = self.manager.answered_partitions(request, dict.fromkeys(request.partitions, code))
            else:
                step = self.manager.answered(request, code, identity)
                if request.api is TransactionApi.END and code == E.none:
                    self.transactions[-1].is_commit_lost = False
        self.is_add_lost |= fate < 0.25 and request.api in (TransactionApi.ADD_PARTITIONS, TransactionApi.ADD_OFFSETS)
        if fate < 0.25 and request.api is TransactionApi.END and request.fields["committed"]:
            self.transactions[-1].is_commit_lost = True
        if step is NextStep.FIND_COORDINATOR:
            place = "transaction" if request.group is None else "group"
            self.found[place] = self.places[place]

    def describe(self, request: TransactionRequest, fate: float) -> None:
        if fate < 0.25:
            self.manager.failed(request, NetworkError("lost"))
        elif self.found["transaction"] != self.places["transaction"]:
            self.manager.answered_description(request, E.not_coordinator, None)
            self.found["transaction"] = self.places["transaction"]
        else:
            self.is_described = not self.is_rival_open
            self.manager.answered_description(request, E.none, self.coordinator.describe())

    @property
    def is_rival_open(self) -> bool:
        found = self.coordinator.id
        return self.rival is not None and found.is_open and found.current == self.rival.identity

    def check_init(self, identity: ProducerIdentity) -> None:
        """Between the description and the request, another producer may have begun a transaction."""
        is_safe = identity.producer_id < 0 or self.is_described or not self.is_rival_open
        assert is_safe, "a fenced producer aborts the transaction of its successor"
        self.is_described = False

    def may_be_late(self, request: TransactionRequest) -> bool:
        return request.api is TransactionApi.INIT_PRODUCER_ID or request.versions.lowest == 5

    def handle(self, request: TransactionRequest, *, is_faulty: bool) -> tuple[int, ProducerIdentity | None]:
        place = "transaction" if request.group is None else "group"
        if is_faulty and self.found[place] != self.places[place]:
            return E.not_coordinator, None
        if is_faulty and self.chance(0.05):
            return E.coordinator_load_in_progress, None
        api, coordinator = request.api, self.coordinator
        fields = {name.removeprefix("v3_and_below_"): value for name, value in request.fields.items()}
        identity = ProducerIdentity(fields["producer_id"], fields["producer_epoch"])
        if api is TransactionApi.INIT_PRODUCER_ID:
            if is_faulty and self.chance(0.05):
                return E.transactional_id_authorization_failed, None
            self.check_init(identity)
            code, following = coordinator.id.init(identity)
            return code, following
        if api is TransactionApi.END:
            if is_faulty and fields["committed"] and coordinator.id.is_open and self.chance(0.05):
                return E.transaction_abortable, None
            raises_epoch = request.versions.highest == 5
            code, following = coordinator.id.end(identity, commits=fields["committed"], raises_epoch=raises_epoch)
            assert not (self.is_fenced and fields["committed"] and code == E.none), "a fenced producer commits"
            return code, following if raises_epoch else None
        if is_faulty and self.chance(0.05):
            if self.is_add_lost:
                self.excuses.add("a partition was rejected after an earlier request was lost")
            return E.group_authorization_failed, None
        if api is TransactionApi.COMMIT_OFFSETS:
            version = 2 if request.versions.highest == 5 else 1
            number = fields["topics"][0]["partitions"][0]["committed_offset"]
            return coordinator.append(identity, OFFSETS, f"offset {number}", version), None
        partitions = request.partitions or {OFFSETS}
        return coordinator.id.add(identity, list(partitions), 1), None

    # -- rare events ---------------------------------------------------------------------------------------------

    def arrive_late(self) -> None:
        if self.late:
            what, version = self.late.pop(self.dice.randrange(len(self.late)))
            if isinstance(what, Batch):
                self.produce(what, version)
            elif isinstance(what, TransactionRequest):
                before = self.coordinator.current
                self.is_described = True
                self.handle(what, is_faulty=False)
                is_init = what.api is TransactionApi.INIT_PRODUCER_ID
                if is_init and before != self.coordinator.current:
                    self.excuses.add("fenced by its own late InitProducerId")
                elif self.manager.state in (S.ABORTABLE_ERROR, S.ABORTING) and before != self.coordinator.current:
                    self.excuses.add("a late commit arrived before the abort")

    def move(self) -> None:
        self.places[self.dice.choice(["transaction", "group"])] += 1

    def time_out(self) -> None:
        if self.dice.random() < 0.2 and self.coordinator.time_out():
            self.excuses.add("the transaction timed out")

    def fence(self) -> None:
        """Start another producer with the same transactional id."""
        if self.dice.random() < 0.2:
            self.excuses.add("fenced")
            code, identity = self.coordinator.id.init(NOBODY)
            if code == E.none:
                self.is_fenced |= self.manager.identity is not None
                self.rival = Rival(identity, self.version)

    def compete(self) -> None:
        """The other producer begins or ends a transaction."""
        rival, found = self.rival, self.coordinator.id
        if rival is None or found.current != rival.identity or found.is_completing:
            return
        if found.is_open:
            code, identity = found.end(rival.identity, commits=True, raises_epoch=rival.version == 2)
            assert code == E.none
            if rival.version == 2:
                rival.identity = identity
        else:
            found.add(rival.identity, [PARTITIONS[0]], rival.version)

    def upgrade(self) -> None:
        if self.is_upgraded:
            self.version = 2

    # -- checks --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        visible = {record for log in self.coordinator.logs.values() for record in log.committed}
        for transaction in self.transactions:
            seen = transaction.records & visible
            assert seen in (set(), transaction.records), f"a part of transaction {transaction.number} is visible"
            if transaction.result in ("open", "aborted"):
                assert not seen, f"transaction {transaction.number} is {transaction.result}, but visible"
            is_settled = not self.coordinator.id.is_completing
            if transaction.result == "committed" and is_settled:
                assert seen == transaction.records, f"transaction {transaction.number} is lost"

    def finish(self) -> None:
        """Without further faults, the user's program must leave every state. Then late requests arrive, and open
        transactions time out."""
        self.is_calm = True
        for _ in range(3000):
            is_idle = not self.waiting and self.manager.state in (S.READY, S.FATAL_ERROR, S.UNINITIALIZED)
            if self.is_dead or (is_idle and self.manager.state is S.READY):
                break
            if self.manager.state is S.IN_TRANSACTION and not self.waiting:
                self.abort()
            self.step()
            self.check()
        else:
            raise AssertionError(f"stuck in {self.manager.state}, waiting for {self.waiting!r}")
        while self.late:
            self.arrive_late()
            self.check()
        self.coordinator.complete()
        self.coordinator.time_out()
        self.coordinator.complete()
        self.check()
