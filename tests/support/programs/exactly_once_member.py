"""A member of a group that copies records from one topic to another exactly once. Prints a line when it is ready.

python -m support.programs.exactly_once_member SERVERS GROUP FROM TO TRANSACTIONAL_ID SETTING=VALUE ...
"""

from __future__ import annotations

import logging
import sys

from headrace import Consumer, Producer, ProducerRecord, Record


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(process)d %(name)s: %(message)s")
    servers, group, source, target, transactional_id, *settings = sys.argv[1:]

    def copy(record: Record) -> ProducerRecord:
        return ProducerRecord(target, record.value, record.key)

    with (
        Producer(bootstrap_servers=servers, transactional_id=transactional_id, linger_ms=0) as producer,
        Consumer(
            dict(setting.split("=", 1) for setting in settings),
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            commit_mode="done",
            enable_auto_commit=False,
        ) as consumer,
    ):
        consumer.subscribe([source])
        print("ready", flush=True)
        consumer.run(copy, producer=producer, concurrency=8)


if __name__ == "__main__":
    main()
