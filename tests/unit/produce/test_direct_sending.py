"""Records that the caller's thread sends itself: when that happens, and that nothing else changes by it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace import Producer
from headrace._aio.produce import direct
from headrace._protocol.messages import METADATA, PRODUCE
from headrace.errors import ForkedError, HeadraceError, RequestTimeoutError
from support.brokers.produce_broker import Act, ProduceBroker
from support.harness.direct_sending import QUICK, direct_count, until_lent, warmed_up
from support.harness.retries import patiently
from support.harness.waiting import Rounds, wait_for

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def broker() -> Iterator[ProduceBroker]:
    with ProduceBroker() as started:
        yield started


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are lent after each single record, also where threads take turns."""
    monkeypatch.setattr(direct, "_MOST_ALONE", 1)


@pytest.mark.parametrize("version", range(PRODUCE.lowest, PRODUCE.highest + 1))
@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False, "acks": 1}, {"compression_type": "zstd"}])
def test_single_records_are_sent_directly_with_what_the_sender_would_send(
    version: int, settings: dict[str, Any]
) -> None:
    with ProduceBroker(version=version) as broker, Producer(bootstrap_servers=broker.servers, **QUICK, **settings) as p:
        for number in range(20):
            found = p.send("t", b"%d" % number, key="k", headers={"h": None}, timestamp=number, partition=0).result(20)
            assert (found.offset, found.timestamp, found.partition) == (number, number, 0)
            until_lent(p)
        assert direct_count(p) == 19
        metrics = p.metrics()
        assert (metrics["records_delivered"], metrics["requests"], metrics["batches_pending"]) == (20, 20, 0)
        assert metrics["buffered_bytes"] == 0
    assert broker.values() == [b"%d" % number for number in range(20)]
    sent = [each for each in broker.requests if each.api_key == PRODUCE.key]
    assert {each.version for each in sent} == {version}
    assert {each.client_id for each in sent} == {sent[0].client_id}
    assert {(each.body.acks, each.body.timeout) for each in sent} == {(sent[0].body.acks, sent[0].body.timeout)}


@pytest.mark.parametrize(
    "settings", [{"linger_ms": 1}, {"acks": 0, "enable_idempotence": False}], ids=["linger.ms", "acks=0"]
)
def test_other_producers_send_nothing_directly(broker: ProduceBroker, settings: dict[str, Any]) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK | settings) as producer:
        for _ in range(5):
            producer.send("t", b"x").result(20)
        assert direct_count(producer) == 0


@pytest.mark.parametrize("end", ["close", "crash"])
def test_the_counters_include_records_that_were_sent_directly_after_the_end_of_the_sender(
    broker: ProduceBroker, end: str
) -> None:
    counters = ("records_delivered", "requests", "bytes_sent", "retries")
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        for _ in range(3):
            producer.send("t", b"x", partition=0).result(20)
            until_lent(producer)
        before = producer.metrics()
        assert direct_count(producer) == 2
        if end == "crash":
            lifecycle = producer._parts.lifecycle
            lifecycle.portal.call(lambda: lifecycle.runtime._crashed(ValueError("a bug")))
            assert {name: producer.metrics()[name] for name in counters} == {name: before[name] for name in counters}
    assert before["records_delivered"] == before["requests"] == 3
    assert {name: producer.metrics()[name] for name in counters} == {name: before[name] for name in counters}


def test_a_record_that_nobody_waits_for_is_delivered(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        delivery = producer.send("t", b"x", partition=0)
        assert direct_count(producer) == 1
        wait_for("the delivery", lambda: delivery.is_done)
        assert delivery.offset == 1
        wait_for("nothing pending", lambda: producer.metrics()["batches_pending"] == 0)


def test_a_record_after_a_pause_is_sent_directly(broker: ProduceBroker) -> None:
    """The loop has stopped to watch: the record wakes it up."""
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        (lent,) = producer._parts.lifecycle.runtime.sender.direct._lent.values()  # type: ignore[union-attr]
        sending = producer._parts.lifecycle.runtime.sender.direct  # type: ignore[union-attr]
        wait_for("the end of watching", lambda: sending._timer is None)
        assert lent.socket.is_lent
        delivery = producer.send("t", b"x", partition=0)
        assert direct_count(producer) == 1
        wait_for("the delivery", lambda: delivery.is_done)


@pytest.mark.parametrize("pieces", [2, 5, 60])
def test_a_response_in_pieces_is_read(broker: ProduceBroker, pieces: int) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        broker.plan = lambda: Act(pieces=pieces)
        assert [producer.send("t", b"x", partition=0).result(20).offset for _ in range(5)] == [1, 2, 3, 4, 5]


UNUSUAL = {
    "late": Act(delay=0.05),
    "retriable": Act(code=ErrorCode.not_enough_replicas),
    "moved": Act(code=ErrorCode.not_leader_or_follower),
    "lost before": Act(is_lost=True, is_cut=True),
    "lost after": Act(is_cut=True),
    "lost late": Act(is_cut=True, delay=0.05),
    "throttled": Act(throttle_ms=60),
    "tags": Act(has_unknown_tags=True),
    "duplicate": Act(code=ErrorCode.duplicate_sequence_number),
}


@pytest.mark.parametrize("waits", ["result", "flush", "nobody", "await"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_answer_to_a_direct_record_is_left_to_the_sender(
    broker: ProduceBroker, name: str, waits: str
) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        acts = [UNUSUAL[name]]
        broker.plan = lambda: acts.pop() if acts else Act()
        delivery = producer.send("t", b"second", partition=0)
        assert direct_count(producer) == 1
        if waits == "result":
            delivery.result(20)
        elif waits == "flush":
            producer.flush(timeout=20)
        elif waits == "await":
            asyncio.run(_awaited(delivery))
        wait_for("the delivery", lambda: delivery.is_done)
        third = producer.send("t", b"third", partition=0).result(20)
    if name == "duplicate":  # which it was not
        assert broker.values() == [b"first", b"third"]
    else:
        assert broker.values() == [b"first", b"second", b"third"]
        assert (delivery.offset, third.offset) == (1, 2)


async def _awaited(delivery: Any, seconds: float = 20) -> Any:
    async with asyncio.timeout(seconds):
        return await delivery


def test_a_throttled_producer_pauses_although_the_record_was_sent_directly(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        broker.plan = lambda: Act(throttle_ms=300)
        producer.send("t", b"x", partition=0).result(20)
        started = time.monotonic()
        producer.send("t", b"x", partition=0).result(20)
        assert time.monotonic() - started > 0.25


def test_an_error_that_a_retry_does_not_help_fails_the_record(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        broker.plan = lambda: Act(code=ErrorCode.invalid_record)
        with pytest.raises(HeadraceError, match="t-0"):
            producer.send("t", b"x", partition=0).result(20)
        broker.plan = Act
        assert producer.send("t", b"y", partition=0).result(20).offset == 1
    assert broker.values() == [b"first", b"y"]


def test_a_result_that_is_not_there_in_time_raises_and_the_record_is_delivered_later(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        may_answer = threading.Event()
        broker.plan = lambda: Act(after=may_answer)
        delivery = producer.send("t", b"x", partition=0)
        for timeout in (0, 0.001, 0.03):
            started = time.monotonic()
            with pytest.raises(RequestTimeoutError):
                delivery.result(timeout)
            assert time.monotonic() - started < 10, "request.timeout.ms is 30 seconds"
        may_answer.set()
        assert delivery.result(20).offset == 1


def test_a_broker_that_never_answers_ends_the_delivery_in_time(broker: ProduceBroker) -> None:
    def scenario(scale: float) -> None:
        broker.plan, times = Act, short_times(scale)
        with Producer(bootstrap_servers=broker.servers, **QUICK, **times) as producer:
            warmed_up(producer)
            broker.plan = lambda: Act(delay=3600)
            with pytest.raises(RequestTimeoutError, match=rf"delivery\.timeout\.ms={times['delivery_timeout_ms']}"):
                producer.send("t", b"x", partition=0).result(20)

    patiently(scenario)


def short_times(scale: float) -> dict[str, int]:
    return {"request_timeout_ms": round(100 * scale), "delivery_timeout_ms": round(300 * scale)}


def test_records_that_follow_a_direct_one_at_once_keep_their_order(broker: ProduceBroker) -> None:
    """They go to an open batch, since one record is on its way, and the loop takes the connection back."""
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        for number in range(20):
            warmed_up(producer)
            broker.plan = lambda: Act(delay=0.002)
            deliveries = [producer.send("t", b"%d" % each, partition=0) for each in range(30)]
            assert direct_count(producer) > number
            producer.flush(timeout=20)
            offsets = [each.offset for each in deliveries]
            assert offsets == list(range(31 * number + 1, 31 * (number + 1)))
            broker.plan = Act


def test_a_connection_is_lent_less_often_while_others_send_at_the_same_time(
    broker: ProduceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_MOST_ALONE", 64)
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        broker.plan = lambda: Act(delay=0.002)
        for _ in range(50):
            for _ in range(2):
                producer.send("t", b"x", partition=0)
            producer.flush(timeout=20)
        assert direct_count(producer) < 10
        broker.plan = Act
        rounds = Rounds("direct records, when they are alone again", 100)
        for _ in rounds:
            producer.send("t", b"x", partition=0).result(20)
            rounds.met = direct_count(producer)


def test_rows_of_a_table_come_after_a_direct_record(broker: ProduceBroker) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        broker.plan = lambda: Act(delay=0.003)
        producer.send("t", b"direct", partition=0)
        producer.send_arrow("t", pyarrow.table({"value": [b"row"]}))
        producer.flush(timeout=20)
        producer.send("t", b"last", partition=0).result(20)
    assert broker.values() == [b"first", b"direct", b"row", b"last"]


def test_a_metadata_request_of_the_loop_takes_the_connection_and_gives_it_back(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        for number in range(5):
            warmed_up(producer)
            producer.partitions_for_topic("t")
            producer.send("t", b"x", partition=0).result(20)
            until_lent(producer)
            producer.send("t", b"direct", partition=0).result(20)
            assert direct_count(producer) > number
    assert broker.count(METADATA.key) >= 6


def test_records_without_a_key_change_their_partition_as_with_the_sender() -> None:
    with ProduceBroker(partitions=3) as broker:
        with Producer(bootstrap_servers=broker.servers, **QUICK, batch_size=1000) as producer:
            rounds = Rounds("direct records", 200, at_least=300)
            for number in rounds:
                producer.send("t", b"%4d" % number * 25).result(20)
                until_lent(producer)
                rounds.met = direct_count(producer)
        values = [broker.values(partition) for partition in range(3)]
        assert sum(map(len, values)) == number + 1
        assert min(map(len, values)) > 20, "each partition is drawn again and again"
        for each in values:
            runs = [int(later[:4]) - int(earlier[:4]) for earlier, later in itertools.pairwise(each)]
            assert runs.count(1) > 0.7 * len(runs), "and stays for some records"


def test_a_connection_that_the_broker_closes_while_it_is_lent_is_replaced(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        for number in range(5):
            warmed_up(producer)
            broker.close_connections()
            assert producer.send("t", b"x", partition=0).result(20).offset == 2 * number + 1
    assert broker.values() == [b"first", b"x"] * 5


def test_a_record_after_the_broker_has_closed_an_idle_connection_needs_no_retry(broker: ProduceBroker) -> None:
    """The thread finds that it is closed before it writes: then the loop must not write to it either."""
    once = {"retries": 0, "enable_idempotence": False, "acks": 1}
    with Producer(bootstrap_servers=broker.servers, **QUICK, **once) as producer:
        for number in range(5):
            warmed_up(producer)
            sending = producer._parts.lifecycle.runtime.sender.direct  # type: ignore[union-attr]
            wait_for("the end of watching", lambda sending=sending: sending._timer is None)  # type: ignore[misc]
            broker.close_connections()
            assert producer.send("t", b"x", partition=0).result(20).offset == 2 * number + 1
        assert producer.metrics()["retries"] == 0


def _client_sockets(broker: ProduceBroker) -> int:
    """Connections to the broker, and pairs of sockets, that this process has open."""
    count, port = 0, int(broker.servers.rpartition(":")[2])
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as each:
                    count += each.family == socket.AF_UNIX or each.getpeername()[1] == port
    return count


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_close_closes_every_socket(broker: ProduceBroker) -> None:
    """At once: the broker would keep its end for minutes, and a program with many producers would run out of them."""
    gc.disable()
    try:
        before, closed = _client_sockets(broker), []
        for _ in range(5):
            producer = Producer(bootstrap_servers=broker.servers, **QUICK)
            warmed_up(producer)
            producer.send("t", b"x", partition=0).result(20)
            producer.close()
            closed.append(producer)
        assert _client_sockets(broker) == before
    finally:
        gc.enable()


def test_a_connection_that_ends_when_it_is_not_lent_is_closed(broker: ProduceBroker) -> None:
    def scenario(scale: float) -> None:
        broker.plan = Act
        with Producer(bootstrap_servers=broker.servers, **QUICK, **short_times(scale)) as producer:
            warmed_up(producer)
            (lent,) = producer._parts.lifecycle.runtime.sender.direct._lent.values()  # type: ignore[union-attr]
            assert lent.connection.descriptor_to_lend is None, "it has one borrower at a time"
            broker.plan = lambda: Act(delay=0.5 * scale)
            with pytest.raises(RequestTimeoutError):  # the loop has taken the connection back, and closes it later
                producer.send("t", b"x", partition=0).result(20)
            assert not lent.connection.is_open
            lent.socket.lend(0)
            assert not lent.socket.is_lent

    patiently(scenario)


@pytest.mark.parametrize("kind", ["DirectSender", "DirectConnection"])
def test_without_file_descriptors_nothing_is_sent_directly(
    broker: ProduceBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(direct, kind, refused)
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        for number in range(5):
            assert producer.send("t", b"x", partition=0).result(20).offset == number
            time.sleep(0.005)
        assert direct_count(producer) == 0


def test_batches_that_the_loop_took_over_are_forgotten_when_they_are_done(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        broker.plan = lambda: Act(delay=0.01)
        for _ in range(20):
            producer.send("t", b"x", partition=0).result(20)
            until_lent(producer)
        assert direct_count(producer) == 20
        assert len(producer._parts.accumulator._ages) <= 2


def test_a_connection_and_a_topic_are_in_use_also_if_every_response_is_late(
    broker: ProduceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_WATCH", 3600)  # the loop takes the connection back before it looks
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        (lent,) = producer._parts.lifecycle.runtime.sender.direct._lent.values()  # type: ignore[union-attr]
        broker.plan = lambda: Act(delay=0.05)
        started = time.monotonic()
        producer.send("t", b"x", partition=0).result(20)
        assert direct_count(producer) == 1
        assert lent.connection.last_used >= started
        assert producer._parts.accumulator._topics["t"].last_used >= started


def test_large_records_and_small_ones_alternate(broker: ProduceBroker) -> None:
    values = [b"x" * (size % 40_000) for size in range(0, 400_000, 7919)]
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        for value in values:
            producer.send("t", value, partition=0).result(20)
            until_lent(producer)
        assert 0 < direct_count(producer) < len(values)
    assert broker.values() == values


def test_a_dropped_topic_or_a_closed_producer_sends_nothing_directly(broker: ProduceBroker) -> None:
    producer = Producer(bootstrap_servers=broker.servers, **QUICK)
    warmed_up(producer)
    opened = producer._parts.accumulator.open["t"]
    producer.close()
    assert opened.append(b"too late", None, None, None, 0) is None
    assert broker.values() == [b"first"]


def test_close_delivers_a_direct_record(broker: ProduceBroker) -> None:
    for delay in (0.0, 0.05):
        producer = Producer(bootstrap_servers=broker.servers, **QUICK)
        warmed_up(producer)
        broker.plan = lambda delay=delay: Act(delay=delay)  # type: ignore[misc]
        delivery = producer.send("t", b"x", partition=0)
        producer.close()
        assert delivery.offset is not None
        broker.plan = Act


def test_a_child_process_sends_nothing_directly(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        opened = producer._parts.accumulator.open["t"]
        broker.plan = lambda: Act(delay=0.1)
        delivery = producer.send("t", b"parent", partition=0)
        pid = os.fork()
        if pid == 0:
            refused = opened.append(b"child", None, None, None, 0) is None
            with contextlib.suppress(ForkedError):
                delivery.result(1)
                refused = False
            os._exit(0 if refused else 1)
        _, status = os.waitpid(pid, 0)
        assert status == 0
        assert delivery.result(20).offset == 1
    assert broker.values() == [b"first", b"parent"]


def test_a_child_process_does_not_wait_for_an_answer_that_its_parent_reads(broker: ProduceBroker) -> None:
    with Producer(bootstrap_servers=broker.servers, **QUICK) as producer:
        warmed_up(producer)
        broker.plan = lambda: Act(delay=0.1)
        delivery = producer.send("t", b"parent", partition=0)
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(TimeoutError):
                try:
                    asyncio.run(_awaited(delivery, 2))
                except ForkedError:
                    code = 0
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert status == 0
        assert delivery.result(20).offset == 1


def test_the_connection_is_taken_back_while_the_login_is_renewed() -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
    with ProduceBroker(login_ms=1300) as broker:
        with Producer(bootstrap_servers=broker.servers, **QUICK, **login, sasl_password="p") as producer:
            producer.send("t", b"").result(20)
            first = broker.logins
            rounds = Rounds("direct records beside two logins", 50)
            for number in rounds:
                assert producer.send("t", b"").result(20).offset == number + 1
                rounds.met = direct_count(producer) if broker.logins >= first + 2 else 0
        assert not broker.intruders
