"""A share consumer process that acquires records and then does nothing: `… servers group topic`.

It prints its acquired records in one line and runs until it is killed.
"""

from __future__ import annotations

import signal
import sys

from headrace import ShareConsumer

if __name__ == "__main__":
    servers, group, topic = sys.argv[1:]
    consumer = ShareConsumer(bootstrap_servers=servers, group_id=group)
    consumer.subscribe([topic])
    while not (records := consumer.poll(1.0)):
        pass
    print(*(record.offset for record in records), flush=True)
    signal.pause()
