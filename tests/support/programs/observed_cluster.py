"""A cluster to look at with `headrace ui`: groups of several kinds, some of them in trouble. Ctrl-C or SIGTERM ends it.

    python -m support.programs.observed_cluster [HOST:PORT]

`billing` is fine, and members come and go. `fraud-check` is too slow. `search-index` was down and works off a backlog,
in two lanes. `audit` has no members. `mails` is a share group.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time

from headrace import LocalBroker
from support.brokers.admin import Admin
from support.brokers.group_configs import configure_group
from support.harness.paced_members import PacedConsumer, PacedShareConsumer, PacedWriter

_BACKLOG = 120_000


def _order(number: int) -> bytes:
    return json.dumps({"order": number, "customer": f"c-{number % 97}", "amount": number % 90 + 10}).encode()


def show(servers: str) -> None:
    admin = Admin(servers)
    for topic, partitions in (("orders", 6), ("payments", 4), ("clicks", 4), ("mails", 2)):
        admin.create("", partitions, name=topic)
    configure_group(servers, "mails", share_auto_offset_reset="earliest")
    with contextlib.ExitStack() as stack:
        for topic, rate in (("orders", 300), ("payments", 120), ("clicks", 400), ("mails", 40)):
            stack.enter_context(PacedWriter(servers, topic, rate, _order))
        stack.enter_context(PacedConsumer(servers, "billing", "orders", 5000, group_protocol="consumer"))
        stack.enter_context(PacedConsumer(servers, "fraud-check", "payments", 70))
        stack.enter_context(PacedConsumer(servers, "dashboard", "clicks", 5000))
        stack.enter_context(PacedShareConsumer(servers, "mails", "mails", 60))
        with PacedConsumer(servers, "audit", "payments", 5000), _indexer(servers, 5000):
            time.sleep(8)
        with PacedWriter(servers, "clicks", _BACKLOG / 6, _order):
            time.sleep(6)
        print("ready", flush=True)
        stack.enter_context(_indexer(servers, 1200))
        while True:
            with PacedConsumer(servers, "billing", "orders", 5000, group_protocol="consumer", client_id="billing-2"):
                time.sleep(25)
            time.sleep(15)


def _indexer(servers: str, rate: float) -> PacedConsumer:
    return PacedConsumer(servers, "search-index", "clicks", rate, enable_parallel_rebalance=True)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        if len(sys.argv) > 1:
            show(sys.argv[1])
        else:
            with LocalBroker(properties={"group.initial.rebalance.delay.ms": 0}) as broker:
                print(broker.bootstrap_servers, flush=True)
                show(broker.bootstrap_servers)


if __name__ == "__main__":
    main()
