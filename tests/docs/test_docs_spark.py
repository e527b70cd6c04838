"""The blocks of README.md and docs/ that need Spark, in the session of the tests or a small one.

For a block with only `.option(…)` calls, the test checks that the source accepts them; their effect is tested with the
source. Tables of a pipeline are resolved.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from docs.test_docs_blocks import Block, blocks, needs_spark
from headrace.spark.options.group import GroupOptions
from headrace.spark.options.source import SourceOptions
from headrace.spark.options.unused import find_unused_options
from support.brokers.admin import unique
from support.harness.waiting import wait_for
from support.spark.streams import DEADLINE, TOO_BUSY, started

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return spark


class Defined(GraphElementRegistry):
    """Collects the flows of a pipeline."""

    def __init__(self) -> None:
        self.flows: list[Flow] = []

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_output(self, output: Output) -> None: ...
    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None: ...
    def register_sql(self, sql_text: str, file_path: Path) -> None: ...


class Options(dict[str, str]):
    """Collects options like a reader."""

    def option(self, name: str, value: str) -> Options:
        self[name] = value
        return self


def has_options_only(block: Block) -> bool:
    return block.text.startswith(".option(")


@pytest.mark.parametrize("block", list(filter(has_options_only, blocks("python"))), ids=str)
def test_every_documented_spark_option_is_used(block: Block) -> None:
    given = Options({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"})
    eval(compile(f"(given\n{block.text})", block.page, "eval"), {"given": given})
    groups = GroupOptions.parse(given, SourceOptions.parse(given, streaming=True))
    assert find_unused_options(given, groups) == []


@pytest.mark.parametrize(
    "block", [it for it in blocks("python") if needs_spark(it) and not has_options_only(it)], ids=str
)
def test_a_documented_spark_block_runs_as_written(
    block: Block, documented: str, session: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_as_written(block, documented, session, tmp_path)


def test_a_documented_exactly_once_query_can_be_run_again(documented: str, session: Any, tmp_path: Path) -> None:
    """On the same cluster: its checkpoint must last as long as the decisions of its sinkId."""
    found = [it for it in blocks("python") if needs_spark(it) and '"exactlyOnce"' in it.text]
    assert len(found) == 2
    for block in found * 2:
        run_as_written(block, documented, session, tmp_path)


def run_as_written(block: Block, documented: str, session: Any, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": session}
    defined = Defined()
    # Spark's directory is not that of a test. The checkpoints of a block last as long as its broker.
    checkpoints = tmp_path.parent / "checkpoints"
    text = block.text.replace("localhost:9092", documented).replace('"checkpoints/', f'"{checkpoints}/')
    code = compile("\n" * (block.line - 1) + text, block.page, "exec", dont_inherit=True)
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            with graph_element_registration_context(defined):
                exec(code, names)
            break
        except StreamingQueryException as error:
            if TOO_BUSY not in str(error) or time.monotonic() > deadline:
                raise
    for flow in defined.flows:
        assert "value" in flow.func().columns
    for value in names.values():
        if isinstance(value, StreamingQueryListener):
            session.streams.removeListener(value)
    if query := names.get("query"):
        assert not query.isActive
        assert query.exception() is None


LISTENER = next(block for block in blocks("python") if "StreamingQueryListener" in block.text)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"group.membership": "true", "kafka.group.id": unique("listened")}, id="member"),
        pytest.param({"enable.parallel.rebalance": "true", "startingOffsets": "latest"}, id="latest"),
    ],
)
def test_the_documented_listener_prints_lags_and_raises_nothing(
    options: dict[str, str], documented: str, session: Any, tmp_path: Path
) -> None:
    """It gets every progress event, also before the first batch is planned and for a batch that is run again."""
    shown: list[Any] = []
    errors: list[BaseException] = []
    names: dict[str, Any] = {"spark": session, "print": shown.append}
    exec(compile(LISTENER.text, LISTENER.page, "exec", dont_inherit=True), names)
    listener = names["lags"]
    on_progress = listener.onQueryProgress

    def heard(event: Any) -> None:
        try:
            on_progress(event)
        except BaseException as error:
            errors.append(error)
            raise

    listener.onQueryProgress = heard
    reader = session.readStream.format("headrace").option("kafka.bootstrap.servers", documented)
    frame = reader.options(**options).option("subscribe", "orders").load()
    checkpoint = tmp_path / "checkpoint"
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    try:
        for number in range(2):
            query = started(writer.trigger(processingTime="100 milliseconds").start)
            try:
                _wait_shown(query, shown, errors)
            finally:
                query.stop()
            assert query.exception() is None
            assert errors == []
            assert shown, "the listener printed no lags"
            commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            if number == 0 and commits:
                assert all(shown), "lags before the first batch is planned"
                commits[-1].unlink()  # so that this batch is run again
                commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
                shown.clear()
    finally:
        session.streams.removeListener(listener)


def _wait_shown(query: StreamingQuery, shown: list[Any], errors: list[BaseException]) -> None:
    wait_for("figures", lambda: shown or errors or not query.isActive, DEADLINE)
