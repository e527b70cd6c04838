"""Producers that send records directly: how tests see it."""

from __future__ import annotations

from typing import Any

from headrace import Producer
from support.harness.waiting import wait_for

QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 5, "linger_ms": 0}


def direct_count(producer: Any) -> int:
    """How many records were sent directly."""
    sender = producer._parts.lifecycle.runtime.sender.direct.sender
    return 0 if sender is None else sender.requests


def is_lent(producer: Any) -> bool:
    lent = list(producer._parts.lifecycle.runtime.sender.direct._lent.values())
    return any(each.socket.is_lent for each in lent)


def until_lent(producer: Any) -> None:
    wait_for("a connection to be lent", lambda: is_lent(producer))


def warmed_up(producer: Producer) -> None:
    """The next record is sent directly."""
    producer.send("t", b"first", partition=0).result(20)
    until_lent(producer)
