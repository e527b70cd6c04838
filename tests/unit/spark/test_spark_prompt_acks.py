"""A message that Spark sends a worker in two pieces arrives without TCP's delayed acknowledgement."""

from __future__ import annotations

import os
import socket
import statistics
import sys
import threading
import time

import pytest

from headrace.spark.worker.tuning import disable_delayed_acks
from support.harness.retries import quickest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_QUICKACK exists only on Linux")


def second_piece(*, promptly: bool) -> float:
    """Seconds between the first and the second piece."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as spark:
        worker, _ = server.accept()
        with worker:
            # A new connection acknowledges at once, so exchange some messages first.
            for _ in range(20):
                spark.sendall(b"x" * 100)
                worker.recv(100, socket.MSG_WAITALL)
                worker.sendall(b"y")
                spark.recv(1)

            def send() -> None:
                spark.sendall(b"command")
                spark.sendall(b"input")  # held back by Nagle's algorithm

            sender = threading.Thread(target=send)
            sender.start()
            worker.recv(7, socket.MSG_WAITALL)
            began = time.perf_counter()
            if promptly:
                disable_delayed_acks()
            worker.recv(5, socket.MSG_WAITALL)
            sender.join()
            return time.perf_counter() - began


def test_the_second_piece_of_spark_s_message_does_not_wait() -> None:
    best = quickest(lambda: second_piece(promptly=True), 0.02, tries=20)
    assert best < 0.02
    # The median: a thread that waits for a CPU may find the second piece already there when it reads the clock.
    usual = statistics.median(second_piece(promptly=False) for _ in range(5))
    assert usual > best, "without prompt acknowledgements there is no delay, so the test shows nothing"


def test_prompt_acknowledgements_leave_no_files_open() -> None:
    one, other = socket.socketpair()
    with one, other, open(os.devnull):
        before = set(os.listdir("/proc/self/fd"))
        disable_delayed_acks()
        assert set(os.listdir("/proc/self/fd")) <= before
