"""The blocks of README.md and docs/ that need Spark, in the session that there is, or a small one.

A block that has only `.option(…)`s is what a query of the topic `orders` has besides, and is run as one. Tables of a
pipeline are resolved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from docs.test_docs_blocks import Block, blocks, needs_spark

pytest_plugins = ["support.share_fixtures"]
pytestmark = pytest.mark.timeout(300)

_QUERY = """query = (
spark.readStream.format("headrace").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders")
{block}.load()
.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination(100)
"""


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


class Defined(GraphElementRegistry):
    """What a pipeline's definitions are."""

    def __init__(self) -> None:
        self.flows: list[Flow] = []

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_output(self, output: Output) -> None: ...
    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None: ...
    def register_sql(self, sql_text: str, file_path: Path) -> None: ...


@pytest.mark.parametrize("block", list(filter(needs_spark, blocks("python"))), ids=str)
def test_a_block(
    block: Block, documented: str, session: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"spark": session, "checkpoint": str(tmp_path)}
    text = _QUERY.format(block=block.text) if block.text.startswith(".option(") else block.text
    defined = Defined()
    text = text.replace("localhost:9092", documented)
    with graph_element_registration_context(defined):
        exec(compile("\n" * (block.line - 1) + text, block.page, "exec", dont_inherit=True), names)
    for flow in defined.flows:
        assert "value" in flow.func().columns
    for value in names.values():
        if isinstance(value, StreamingQueryListener):
            session.streams.removeListener(value)
    if query := names.get("query"):
        assert not query.isActive
        assert query.exception() is None
