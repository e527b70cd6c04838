"""Spark's connection to a Python worker, without the 40 ms that TCP adds to every task.

Spark sends a task in two small pieces: the command, then what it works on. It does not switch off Nagle's algorithm, so
the second piece waits until the worker has acknowledged the first; and the worker, which has nothing to send, delays
its acknowledgement (40 ms with Linux). Of a micro-batch of a few records that is a quarter.

A worker that has the command can send the acknowledgement at once: it asks for that here. Which of its sockets is
Spark's it is not told, so it asks for all of them; for the others it changes nothing that matters. With
spark.python.unix.domain.socket.enabled=true there is no TCP between the two, and nothing to do.
"""

from __future__ import annotations

import os
import socket
import sys


def acknowledge_at_once() -> None:
    """Linux only; elsewhere it does nothing."""
    if not sys.platform.startswith("linux"):
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:  # that of the listing itself
            continue
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            continue
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
