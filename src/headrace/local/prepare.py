"""Prepares this machine for brokers, once: finds Java, downloads Kafka, creates the class archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .class_archive import class_archive
from .ivy import ProgressCallback
from .java import Java, find_java
from .kafka_home import KafkaHome, install


@dataclass(frozen=True, slots=True)
class Ready:
    """Java and Kafka, ready to run. Without an archive, brokers start more slowly."""

    java: Java
    kafka: KafkaHome
    archive: Path | None


def prepare(version: str, progress: ProgressCallback) -> Ready:
    """Find Java, and find or download Kafka. Raises `LocalBrokerError`."""
    java = find_java()
    kafka = install(version, java, progress)
    return Ready(java, kafka, class_archive(kafka, java, progress))
