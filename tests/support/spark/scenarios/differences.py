"""What headrace observes instead of Spark's own source, on purpose. docs/spark.md has the reasons, in this order."""

from __future__ import annotations

from typing import Any

from .world import FAILS

DIFFERENCES: dict[str, Any] = {
    "maxOffsetsPerTrigger": [[5, 4, 1], [10, 9, 1], [18, 11, 1], [28, 11, 1]],
    "ensure that initial offset are written with an extra byte in the beginning (SPARK-19517)": "no file",
    "deserialization of initial offset written by Spark 2.1.0 (SPARK-19517)": [1000],
    "deserialization of initial offset written by future version": [],
    "test custom metrics - with rate limit": [],
    "async progress tracking": FAILS,
    "failOnDataLoss=false should not return duplicated records: continuous processing": FAILS,
    "AssignStrategy.assignedTopicPartitions must skip invalid partitions": FAILS,
    "a consumer setting of headrace behind the prefix": FAILS,
    "streaming - sink progress is produced": FAILS,
}
