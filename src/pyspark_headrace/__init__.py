"""Spark looks for modules that are called `pyspark_…` and takes their `DefaultSource`."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
