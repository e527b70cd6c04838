"""The blocks of README.md that need Spark, in the session that there is, or a small one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from docs.test_docs_blocks import Block, blocks, needs_spark

pytest_plugins = ["support.share_fixtures"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    before = SparkSession.getActiveSession()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    found = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    yield found
    if before is None:
        found.stop()


@pytest.mark.parametrize("block", [it for it in blocks("python") if needs_spark(it)], ids=str)
def test_a_block(block: Block, documented: str, session: Any, capfd: pytest.CaptureFixture[str]) -> None:
    names = {"spark": session}
    text = block.text.replace("localhost:9092", documented)
    exec(compile("\n" * (block.line - 1) + text, block.page, "exec", dont_inherit=True), names)
    assert "query" not in names or names["query"].exception() is None
