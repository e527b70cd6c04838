"""Works on orders concurrently, in order for each customer; what keeps failing goes to a dead-letter topic.

Starts a real broker and writes the orders first. Ctrl-C ends it in order.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from headrace import Consumer, LocalBroker, Producer, Record

PARTITIONS = 6
CUSTOMERS = 1_000


def write(servers: str, count: int) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(count):
            producer.send("orders", f"{number}", key=f"customer-{number % CUSTOMERS}")


def handle(record: Record) -> None:
    """On one of many threads. An exception means: again, later."""
    time.sleep(0.002)  # asks a service
    if record.key == b"customer-13":
        raise ValueError("this customer is unknown")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--orders", type=int, default=20_000)
    count = arguments.parse_args().orders
    print("Starting Apache Kafka on this machine (the first time, its jars are downloaded) ...", flush=True)
    with LocalBroker(properties={"num.partitions": PARTITIONS}) as broker:
        write(broker.bootstrap_servers, count)
        with Consumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id="billing",
            commit_mode="done",
            auto_offset_reset="earliest",
        ) as consumer:
            consumer.subscribe(["orders"])

            def show(progress: Any) -> None:
                print(progress, flush=True)
                if progress.lag == 0:
                    consumer.wakeup()

            result = consumer.run(
                handle,
                concurrency=32,
                retries=2,
                retry_backoff=0.01,
                dead_letter="orders-failed",
                on_progress=show,
                progress_interval=1.0,
            )
        print(f"{result.handled:,} handled, {result.dead_lettered:,} to the dead letters, in {result.seconds:.1f} s")


if __name__ == "__main__":
    main()
