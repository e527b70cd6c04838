"""A producer that kills itself between two steps of its second transaction.

python -m support.programs.transaction_steps SERVERS FROM TO TRANSACTIONAL_ID GROUP STEP

The steps: begin, send, flush, offsets, commit. It kills itself before STEP; with "none" it exits normally.
"""

from __future__ import annotations

import os
import signal
import sys

from headrace import GroupMetadata, Producer, TopicPartition


def main() -> None:
    servers, source, topic, transactional_id, group, last = sys.argv[1:]

    def die_before(step: str) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    producer = Producer(bootstrap_servers=servers, transactional_id=transactional_id, linger_ms=0)
    with producer.transaction():
        producer.send_all(topic, [f"first {number}" for number in range(10)])
    die_before("begin")
    producer.begin()
    die_before("send")
    producer.send_all(topic, [f"second {number}" for number in range(10)])
    die_before("flush")
    producer.flush()
    die_before("offsets")
    producer.send_offsets({TopicPartition(source, 0): 10}, GroupMetadata(group))
    die_before("commit")
    producer.commit()
    producer.close()


if __name__ == "__main__":
    main()
