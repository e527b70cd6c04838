"""Headrace: a Kafka consumer for Python and PySpark.

from headrace import Consumer

with Consumer(bootstrap_servers="localhost:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["orders"])
    for record in consumer:
        print(record.offset, record.value)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .acknowledge import AcknowledgeType
from .listener import RebalanceListener
from .types import (
    GroupMetadata,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicPartition,
    Watermarks,
)

if TYPE_CHECKING:
    from .aio import AsyncConsumer
    from .aio.run_settings import Progress
    from .aio.share_consumer import AsyncShareConsumer
    from .aio.share_run import ShareProgress
    from .local import LocalBroker
    from .machines.assignors import Assignor, GroupMember
    from .records import Record, Records
    from .security.tokens import OAuthToken
    from .sync import Consumer
    from .sync.share_consumer import ShareConsumer

# Loaded when first asked for, so that `import headrace` costs milliseconds in every Spark worker.
_LAZY = {
    "Assignor": "machines.assignors",
    "AsyncConsumer": "aio",
    "AsyncShareConsumer": "aio.share_consumer",
    "Consumer": "sync",
    "GroupMember": "machines.assignors",
    "LocalBroker": "local",
    "OAuthToken": "security.tokens",
    "Progress": "aio.run_settings",
    "Record": "records",
    "Records": "records",
    "ShareConsumer": "sync.share_consumer",
    "ShareProgress": "aio.share_run",
}

__all__ = [
    "AcknowledgeType",
    "Assignor",
    "AsyncConsumer",
    "AsyncShareConsumer",
    "Consumer",
    "GroupMember",
    "GroupMetadata",
    "LocalBroker",
    "Node",
    "OAuthToken",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "Progress",
    "RebalanceListener",
    "Record",
    "Records",
    "ShareConsumer",
    "ShareProgress",
    "TopicPartition",
    "Watermarks",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
