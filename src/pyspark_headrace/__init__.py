"""Makes `format("headrace")` known to Spark, which imports modules named `pyspark_…` and uses their `DefaultSource`."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
