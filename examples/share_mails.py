"""Two members of a share group work off a queue together: slowly, with failures, and ten records at a time.

Starts a real broker and fills the queue first. Ctrl-C ends it in order.
"""

from __future__ import annotations

import argparse
import threading
import time

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave most of them out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headrace import AcknowledgeType, LocalBroker, Record, ShareConsumer

TOPIC, GROUP = "mails", "senders"


def fill(servers: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[entry])
    admin.incremental_alter_configs([group])[group].result(30)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for number in range(count):
        producer.produce(TOPIC, f"mail {number}")
    producer.flush(60)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--mails", type=int, default=500)
    count = arguments.parse_args().mails
    left = threading.Semaphore(0)

    def send(record: Record) -> AcknowledgeType | None:
        """On one of many threads. An exception means: to be delivered again, by whomever."""
        number = int((record.value or b"").split()[1])
        if number % 100 == 99:
            left.release()
            return AcknowledgeType.REJECT  # no such address
        if number % 10 == 0 and record.delivery_count == 1:
            raise ConnectionError("the mail server is busy")
        time.sleep(0.01)
        left.release()
        return None

    print("Starting Apache Kafka on this machine (the first time, its jars are downloaded) ...", flush=True)
    with LocalBroker() as broker:
        fill(broker.bootstrap_servers, count)
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP, "max.poll.records": 10}
        members = [ShareConsumer(settings, share_acquire_mode="record_limit") for _ in range(2)]

        def work(member: ShareConsumer) -> None:
            member.subscribe([TOPIC])
            print(member.run(send, concurrency=4, max_in_flight=10), flush=True)
            member.close()

        threads = [threading.Thread(target=work, args=(member,)) for member in members]
        for thread in threads:
            thread.start()
        try:
            for _ in range(count):
                left.acquire()
        finally:
            for member in members:
                member.wakeup()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main()
