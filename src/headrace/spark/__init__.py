"""Kafka for PySpark: `format("headrace")`, a drop-in for `format("kafka")`.

Spark finds the source by itself (through `pyspark_headrace`), if headrace is installed where the driver's and the
executors' Python is. Where it is not found, `register(spark)` registers it for a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes `format("headrace")` known to this session. A Python worker without headrace then says so."""
    from .unpacking import RegisteredSource

    spark.dataSource.register(RegisteredSource)
