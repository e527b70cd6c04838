"""A fixture with one Spark session for all tests that need one, and the marker of tests that need a newer PySpark."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from .home import fast_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`@pytest.mark.pyspark("4.2")` skips a test with older versions."""
    for item in items:
        if (marker := item.get_closest_marker("pyspark")) is None:
            continue
        needed, installed = marker.args[0], importlib.metadata.version("pyspark")
        if _version(installed) < _version(needed):
            item.add_marker(pytest.mark.skip(reason=f"needs PySpark {needed}; this is {installed}"))


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession  # imported here, since most test runs do not need it

    # Workers of a pip-installed Spark run the system's python3 by default.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # The default is 15 seconds for fetching the result of collect().
        .config("spark.python.authenticate.socketTimeout", "120s")
    )
    with pytest.MonkeyPatch.context() as patched:
        for name, value in fast_start().items():
            patched.setenv(name, value)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
