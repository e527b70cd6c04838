"""`python -m headrace.local` downloads and prepares Kafka, so that the first broker starts quickly."""

from __future__ import annotations

import sys

from .errors import LocalBrokerError
from .kafka_home import DEFAULT_VERSION
from .prepare import prepare
from .progress import say_on_terminal

if __name__ == "__main__":
    try:
        ready = prepare(DEFAULT_VERSION, say_on_terminal)
    except LocalBrokerError as error:
        sys.exit(f"error: {error}")
    print(f"Apache Kafka {DEFAULT_VERSION} is in {ready.kafka.path}")
