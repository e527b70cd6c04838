"""A consumer and its process: fork, Ctrl-C, fast close, no leaked threads or sockets."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Consumer, LocalBroker, TopicPartition
from headrace.errors import ForkedError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import MakeConsumer, assigned, poll_until
from support.harness.retries import quickest
from support.harness.threads import client_threads, threads_that_stay
from support.harness.waiting import wait_for
from support.members.subprocesses import INTERRUPTIBLE


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("process")
    write(servers, topic, numbered(1000, size=1000))
    return topic


# -- fork -----------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked child, which then exits like a program. Fail if it failed there."""
    read, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            work()
            gc.collect()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent reports any error
            os.write(write_end, traceback.format_exc().encode())
        finally:
            # Not sys.exit(), which would continue the test run in the child.
            os._exit(status)
    os.close(write_end)
    said = b"".join(iter(lambda: os.read(read, 65536), b""))
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0, said.decode()


def test_a_consumer_refuses_calls_in_a_forked_child(make: MakeConsumer, topic: str, servers: str) -> None:
    """The child gets an error, can close the consumer and create its own; the parent's consumer is not affected."""
    tp = TopicPartition(topic, 0)
    consumer = assigned(make, servers, topic, max_poll_records=100, group_id=unique("g"))
    parent = os.getpid()
    assert [record.offset for record in poll_until(consumer, 100)] == list(range(100))

    def child() -> None:
        inner: Any = getattr(consumer, "_consumer", consumer)  # without the adapter's loop, which belongs to the parent
        for call in (
            lambda: inner.assign([tp]),
            lambda: inner.seek(tp, 0),
            inner.assignment,
            inner.metrics,
            inner.wakeup,
        ):
            with pytest.raises(ForkedError, match=str(parent)):
                call()
        if isinstance(inner, Consumer):
            for call in (lambda: inner.poll(1), lambda: inner.position(tp), inner.commit, inner.list_topics):
                with pytest.raises(ForkedError, match=str(parent)):
                    call()
            inner.close()
            inner.close()
        else:

            async def use() -> None:
                for begin in (lambda: inner.poll(1), lambda: inner.position(tp), inner.commit):
                    with pytest.raises(ForkedError, match=str(parent)):
                        await begin()
                await inner.close()

            asyncio.run(use())
        with assigned(Consumer, servers, topic) as own:
            assert poll_until(own, 1)[0].offset == 0

    in_child(child)
    assert [record.offset for record in poll_until(consumer, 900)] == list(range(100, 1000))
    write(servers, topic, numbered(1))
    assert poll_until(consumer, 1), "the parent's sockets still work"
    consumer.commit()


def test_a_forked_child_ends_without_disturbing_its_parent_s_consumer(topic: str, servers: str) -> None:
    """The interpreter's shutdown in the child (finalizers, atexit) does not affect the parent's consumer."""
    program = f"""
import os, sys
from headrace import Consumer, TopicPartition
with Consumer(bootstrap_servers={servers!r}, auto_offset_reset="earliest", max_poll_records=10) as consumer:
    consumer.assign([TopicPartition({topic!r}, 0)])
    assert consumer.poll(60)
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
    consumer.seek(({topic!r}, 0), 500)
    assert consumer.poll(60)[0].offset == 500
    print("fine")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


# -- fast close ----------------------------------------------------------------------------------------------


@pytest.fixture
def mortal_broker() -> Iterator[LocalBroker]:
    with LocalBroker(start_timeout=100.0) as broker:
        yield broker


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_close_takes_less_than_a_second(make: MakeConsumer, topic: str, servers: str) -> None:
    """In at least one of several tries, since the machine may be busy."""
    for group in (None, unique("g")):

        def time_of_close(group: str | None = group) -> float:
            consumer = assigned(make, servers, topic, group_id=group)
            poll_until(consumer, 1)
            return timed(consumer.close)

        assert quickest(time_of_close, 1) < 1
    closed = make(bootstrap_servers=servers)
    closed.close()
    assert quickest(lambda: timed(closed.close), 0.1) < 0.1
    assert quickest(lambda: timed(make(bootstrap_servers=servers).close), 0.1) < 0.1


def test_close_takes_less_than_a_second_beside_a_dead_broker(make: MakeConsumer, mortal_broker: LocalBroker) -> None:
    servers = mortal_broker.bootstrap_servers
    admin = Admin(servers)
    topic = admin.create("mortal")
    write(servers, topic, numbered(100))
    # Three of each, since the machine may be busy.
    alone, with_a_group, alone_later, with_a_group_later = consumers = [
        [assigned(make, servers, topic, max_poll_records=10, group_id=group) for _ in range(3)]
        for group in (None, unique("g"), None, unique("g"))
    ]
    for consumer in itertools.chain(*consumers):
        poll_until(consumer, 10)
    admin.close()
    mortal_broker.pause(1)
    assert any(timed(consumer.close) < 1 for consumer in alone)
    assert any(timed(consumer.close) < 1 for consumer in with_a_group)
    mortal_broker.kill(1)
    assert any(timed(consumer.close) < 1 for consumer in alone_later)
    assert any(timed(consumer.close) < 1 for consumer in with_a_group_later)


POLLING = """
import sys
from headrace import Consumer, TopicPartition
with Consumer(bootstrap_servers=sys.argv[1], group_id=sys.argv[3]) as consumer:
    consumer.assign([TopicPartition(sys.argv[2], 0)])
    consumer.position((sys.argv[2], 0))
    print("ready", flush=True)
    while True:
        consumer.poll(60)
"""
POLLING_ASYNC = """
import asyncio, sys
from headrace import AsyncConsumer, TopicPartition
async def main():
    async with AsyncConsumer(bootstrap_servers=sys.argv[1], group_id=sys.argv[3]) as consumer:
        consumer.assign([TopicPartition(sys.argv[2], 0)])
        await consumer.position((sys.argv[2], 0))
        print("ready", flush=True)
        while True:
            await consumer.poll(60)
asyncio.run(main())
"""
ITERATING = """
import sys
from headrace import Consumer, TopicPartition
with Consumer(bootstrap_servers=sys.argv[1], group_id=sys.argv[3], auto_offset_reset="earliest") as consumer:
    consumer.assign([TopicPartition(sys.argv[2], 0)])
    for number, record in enumerate(consumer, 1):
        if number == 1000:
            print("ready", flush=True)
"""
WAITING = """
import sys
from headrace import Consumer, TopicPartition
with Consumer(bootstrap_servers=sys.argv[1], allow_auto_create_topics=False) as consumer:
    consumer.assign([TopicPartition("missing", 0)])
    consumer.list_topics()
    print("ready", flush=True)
    consumer.position(("missing", 0))
"""


SLEEPING = """
import asyncio, time
import headrace
print("ready", flush=True)
time.sleep(60)  # until it is interrupted
"""


@pytest.mark.parametrize("program", [POLLING, POLLING_ASYNC, ITERATING, WAITING], ids=["poll", "async", "for", "call"])
def test_ctrl_c_ends_a_waiting_program_within_a_second(topic: str, servers: str, program: str) -> None:
    # Python's own exit takes part of that time. It is subtracted if the machine is busy.
    def took() -> float:
        with_a_consumer = _interrupted(program, servers, topic)
        return with_a_consumer if with_a_consumer < 1 else with_a_consumer - _interrupted(SLEEPING, servers, topic)

    assert quickest(took, 1) < 1


def _interrupted(program: str, servers: str, topic: str) -> float:
    """Seconds until the program ends after SIGINT."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE + program, servers, topic, unique("g")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        took = timed(lambda: process.wait(60))
    finally:
        process.kill()
        said = process.communicate()[1]
    assert process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in said, "a task or coroutine was left over"
    return took


ELSEWHERE = """
import signal, sys, threading, time
from headrace import Consumer, TopicPartition
def interrupt():
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
with Consumer(bootstrap_servers=sys.argv[1], allow_auto_create_topics=False) as consumer:
    consumer.assign([TopicPartition("missing", 0)])
    consumer.list_topics()
    for call in (lambda: consumer.poll(60), lambda: consumer.position(("missing", 0))):
        threading.Timer(0.3, interrupt).start()
        began = time.monotonic()
        try:
            call()
        except KeyboardInterrupt:
            print(time.monotonic() - began < 30)
"""


def test_a_signal_delivered_to_another_thread_interrupts_a_waiting_call(servers: str) -> None:
    """Like a signal that arrives between Python's check for signals and the waiting system call."""
    command = [sys.executable, "-c", INTERRUPTIBLE + ELSEWHERE, servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("True\nTrue\n", "", 0)


# -- no leaks --------------------------------------------------------------------------------------


def test_close_ends_all_threads(topic: str, servers: str) -> None:
    before = client_threads()
    consumer = assigned(Consumer, servers, topic)
    poll_until(consumer, 1000)
    assert (started := client_threads() - before)
    consumer.close()
    assert not threads_that_stay(started)


def test_a_consumer_dropped_without_close_ends_its_threads_and_sockets(topic: str, servers: str) -> None:
    before = client_threads()
    consumer = assigned(Consumer, servers, topic)
    poll_until(consumer, 1000)
    started = client_threads() - before
    descriptors = len(os.listdir("/proc/self/fd"))

    with pytest.warns(ResourceWarning, match="unclosed Consumer"):
        del consumer  # no reference cycle keeps it alive until the garbage collector runs
    gc.collect()
    assert not threads_that_stay(started)
    wait_for("its sockets to close", lambda: len(os.listdir("/proc/self/fd")) < descriptors - 2)


def test_a_program_that_does_not_close_its_consumer_ends(topic: str, servers: str) -> None:
    program = f"""
from headrace import Consumer, TopicPartition
consumer = Consumer(bootstrap_servers={servers!r}, auto_offset_reset="earliest")
consumer.assign([TopicPartition({topic!r}, 0)])
print(consumer.poll(60)[0].offset)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)
