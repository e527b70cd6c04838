"""Runs clients in a loop and prints what the process uses. Exits with 1 if that grows.

PYTHONPATH=tests python -m leaks --minutes 10
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from headrace import Admin, LocalBroker

from .cycle import PARTITIONS, SMALL_TOPIC, TOPIC, Application
from .figures import HEADER, Figures, growth

_SAMPLES = 8  # at least
# Rebalances start at once, and members notice them soon.
_EAGER = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 100,
    "group.share.assignment.interval.ms": 0,
}
# The log stays small.
_SMALL = {"segment.bytes": f"{2**20}", "retention.bytes": f"{2**20}"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m leaks", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--interval", type=float, default=15.0, help="seconds between two lines")
    parser.add_argument("--servers", help="of a running cluster (default: a broker is started)")
    options = parser.parse_args()
    logging.getLogger("headrace").setLevel(logging.ERROR)  # one step connects to a port that nobody listens on
    if options.servers:
        return watch(options.servers, options.minutes * 60, options.interval)
    with LocalBroker(properties=_EAGER) as broker:
        return watch(broker.bootstrap_servers, options.minutes * 60, options.interval)


def watch(servers: str, seconds: float, interval: float) -> int:
    with Admin(bootstrap_servers=servers) as admin:
        for topic in (TOPIC, SMALL_TOPIC):
            admin.create_topic(topic, PARTITIONS, 1, _SMALL)
    application = Application(servers)
    samples: list[Figures] = []
    print(HEADER, flush=True)
    began = time.monotonic()
    cycles = 0
    try:
        while (elapsed := time.monotonic() - began) < seconds or len(samples) < _SAMPLES:
            application.cycle()
            cycles += 1
            if elapsed >= len(samples) * min(interval, seconds / _SAMPLES):
                samples.append(Figures.now(cycles))
                print(samples[-1].line(time.monotonic() - began), flush=True)
    finally:
        application.close()
    found = growth(samples)
    for text in found:
        print(f"LEAK: {text}", flush=True)
    print(f"{cycles:,} cycles: " + ("growth beyond the limits" if found else "nothing grows"), flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
