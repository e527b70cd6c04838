"""Headrace: a Kafka client for Python and PySpark.

```python
from headrace import Consumer

with Consumer(bootstrap_servers="localhost:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["orders"])
    for record in consumer:
        print(record.offset, record.value)
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .listener import RebalanceListener
from .types import (
    AcknowledgeType,
    GroupMetadata,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
    Watermarks,
)

if TYPE_CHECKING:
    from ._aio import AsyncConsumer
    from ._aio.admin.facade import AsyncAdmin
    from ._aio.produce.bulk import Deliveries
    from ._aio.produce.producer import AsyncProducer
    from ._aio.run.options import Progress
    from ._aio.run.share_run import ShareProgress
    from ._aio.share.consumer import AsyncShareConsumer
    from ._machines.group.assignors import Assignor, GroupMember
    from ._record_batch import Delivery
    from ._security.tokens import OAuthToken
    from .local import LocalBroker
    from .records import Record, Records
    from .sync import Consumer
    from .sync.admin import Admin
    from .sync.producer import Producer
    from .sync.share_consumer import ShareConsumer

# Imported on first access, so that `import headrace` takes only milliseconds in every Spark worker.
_LAZY = {
    "Admin": "sync.admin",
    "Assignor": "_machines.group.assignors",
    "AsyncAdmin": "_aio.admin.facade",
    "AsyncConsumer": "_aio",
    "AsyncProducer": "_aio.produce.producer",
    "AsyncShareConsumer": "_aio.share.consumer",
    "Consumer": "sync",
    "Deliveries": "_aio.produce.bulk",
    "Delivery": "_record_batch",
    "GroupMember": "_machines.group.assignors",
    "LocalBroker": "local",
    "OAuthToken": "_security.tokens",
    "Producer": "sync.producer",
    "Progress": "_aio.run.options",
    "Record": "records",
    "Records": "records",
    "ShareConsumer": "sync.share_consumer",
    "ShareProgress": "_aio.run.share_run",
}

__all__ = [
    "AcknowledgeType",
    "Admin",
    "Assignor",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncShareConsumer",
    "Consumer",
    "Deliveries",
    "Delivery",
    "GroupMember",
    "GroupMetadata",
    "LocalBroker",
    "Node",
    "OAuthToken",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "Producer",
    "ProducerRecord",
    "Progress",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
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
