"""The SPARK_HOME of tests, with which Spark's Python processes start faster."""

from __future__ import annotations

from headrace.cli.spark_home import fast_home


def fast_start() -> dict[str, str]:
    """Variables for a driver whose workers run this Python.

    Spark gives a Python process ten seconds to connect. Without bytecode of PySpark, it needs a second of CPU time
    before that: too much for a fresh machine on which six tests start brokers at the same time.
    """
    home = fast_home()
    return {} if home is None else {"SPARK_HOME": str(home)}
