"""Two members of a share group work off a queue together: slowly, with failures, and ten records at a time.

Starts a real broker and fills the queue first. Ctrl-C ends it in order.
"""

from __future__ import annotations

import argparse
import threading
import time

from headrace import AcknowledgeType, LocalBroker, Producer, Record, ShareConsumer

TOPIC, GROUP = "mails", "senders"


def fill(broker: LocalBroker, count: int) -> None:
    done = broker.run_tool(
        *("kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap_servers, "--alter"),
        *("--entity-type", "groups", "--entity-name", GROUP, "--add-config", "share.auto.offset.reset=earliest"),
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(TOPIC, f"mail {number}")


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
        fill(broker, count)
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
