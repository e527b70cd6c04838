"""Brokers with a certain transaction.version."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from headrace import LocalBroker
from support.brokers.fixtures import KAFKA_VERSION
from support.brokers.java_tool import java_tool

# By default, brokers look for timed-out transactions every ten seconds.
_EAGER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}


@contextlib.contextmanager
def broker_with(transaction_version: int) -> Iterator[LocalBroker]:
    """Before Kafka 4.0, there is only version 1. The broker aborts transactions soon after their timeout."""
    is_old = KAFKA_VERSION.startswith("3.")
    if is_old and transaction_version != 1:
        pytest.skip(f"Kafka {KAFKA_VERSION} does not have transaction.version=2")
    with LocalBroker(properties=_EAGER, version=KAFKA_VERSION, start_timeout=100.0) as broker:
        if transaction_version == 1 and not is_old:
            where = ("--bootstrap-server", broker.bootstrap_servers)
            tool = java_tool("FeatureCommand", *where, "downgrade", "--feature", "transaction.version=1")
            subprocess.run(tool, check=True, timeout=60, capture_output=True)
        yield broker
