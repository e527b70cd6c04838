"""Starts a real broker, writes a sample topic and reads it back three ways, with figures.

python examples/first_read.py
"""

from __future__ import annotations

import argparse
import time

from headrace import Consumer, LocalBroker, Producer, Records, TopicPartition

TOPIC = "readings"
PARTITIONS = 6


def write(servers: str, count: int) -> None:
    with Producer(bootstrap_servers=servers, compression_type="lz4") as producer:
        for number in range(count):
            value = f'{{"sensor": {number % 500}, "speed": {30 + number % 90}, "sequence": {number}}}'
            producer.send(TOPIC, value, key=str(number % 500), partition=number % PARTITIONS)


def read(servers: str, count: int, way: str) -> float:
    """Reads the whole topic. Returns records a second."""
    with Consumer(bootstrap_servers=servers, max_poll_records=-1 if way == "as Arrow" else 500) as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        consumer.seek_to_beginning()
        seen = total = 0
        started = time.perf_counter()
        while seen < count:
            records = consumer.poll(10.0)
            if not records:
                raise SystemExit(f"only {seen} of {count} records came")
            if way == "as Arrow":
                total += records.to_arrow()["value"].nbytes
            elif way == "by record":
                total += sum(len(record.value or b"") for record in records)
            seen += len(records)
        return seen / (time.perf_counter() - started)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=int, default=1_000_000)
    count = arguments.parse_args().records
    Records().to_arrow()  # loads pyarrow now, and not in the middle of a reading
    print("Starting Apache Kafka on this machine (the first time, its jars are downloaded) ...", flush=True)
    with LocalBroker(properties={"num.partitions": PARTITIONS}) as broker:
        print(f"Writing {count:,} records to {TOPIC} on {broker.bootstrap_servers} ...", flush=True)
        write(broker.bootstrap_servers, count)
        for way in ("poll() alone", "by record", "as Arrow"):
            rate = read(broker.bootstrap_servers, count, way)
            print(f"  read {way:<13} {rate / 1e6:5.2f} million records a second", flush=True)
        with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
            consumer.assign([(TOPIC, 0)])
            consumer.seek((TOPIC, 0), 41)
            print("One of them:", consumer.poll(10.0, max_records=1)[0])


if __name__ == "__main__":
    main()
