"""Kafka for PySpark: `format("headrace")`, a drop-in replacement for `format("kafka")`.

Spark finds the source by itself (through `pyspark_headrace`) if headrace is installed in the Python of the driver and
of the executors. If it does not, call `register(spark)` to register the source in a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Registers `format("headrace")` in this session. A Python worker without headrace then reports what to do."""
    from .registration import RegisteredSource

    spark.dataSource.register(RegisteredSource)
