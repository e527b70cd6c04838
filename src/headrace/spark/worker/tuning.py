"""Tuning of Spark's Python workers: less garbage collection, no delayed TCP acknowledgements.

**Garbage collection.** A worker runs a full collection after each task, before it accepts the next one. The collection
visits every object of pyspark, pyarrow and this package, none of which is garbage. That takes 20 to 60 ms, a third of
the time of a small task.

**Delayed acknowledgements.** Spark sends a task in two small pieces: the command, then its input. It does not disable
Nagle's algorithm, so the second piece waits until the worker has acknowledged the first. The worker has nothing to
send, so its kernel delays the acknowledgement (40 ms on Linux): a quarter of the time of a micro-batch of a few
records. With spark.python.unix.domain.socket.enabled=true there is no TCP between the two, and nothing to do.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

_frozen_in = 0  # the process id: workers are forked


def exclude_modules_from_gc() -> None:
    """Excludes all objects that exist now from later collections, once per process. A task calls it as soon as its
    modules are loaded, and not later: objects that the user's code creates before this call, and drops later in
    reference cycles, are never freed."""
    global _frozen_in
    if _frozen_in != os.getpid():
        _frozen_in = os.getpid()
        gc.freeze()


def disable_delayed_acks() -> None:
    """Makes the kernel send outstanding acknowledgements at once. A worker that has received the command calls it. It
    does not know which of its sockets is Spark's, so it sets the option on all; for the others it makes no practical
    difference. Linux only: does nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:  # the descriptor of the listing itself
            continue
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # not a socket
            os.close(copy)
            continue
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
