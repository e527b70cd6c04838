"""`python -m headrace.local` downloads and prepares Kafka and the schema registry, so that they start quickly."""

from __future__ import annotations

import sys

from .errors import LocalBrokerError
from .kafka_home import DEFAULT_VERSION
from .prepare import prepare
from .progress import say_on_terminal
from .registry import registry_archive
from .registry_home import PRODUCT, REGISTRY_VERSION, install_registry

if __name__ == "__main__":
    try:
        ready = prepare(DEFAULT_VERSION, say_on_terminal)
        registry = install_registry(ready.java, say_on_terminal)
        registry_archive(registry, ready.java, say_on_terminal)
    except LocalBrokerError as error:
        sys.exit(f"error: {error}")
    print(f"Apache Kafka {DEFAULT_VERSION} is in {ready.kafka.path}")
    print(f"{PRODUCT} {REGISTRY_VERSION} is in {registry.path}")
