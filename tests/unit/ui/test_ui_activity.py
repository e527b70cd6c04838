"""What a command publishes for its page: a pipeline by its events and checkpoints, a demo by its steps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import TopicPartition
from headrace.monitor.batches import read_batches
from headrace.monitor.model import ClusterView, GroupView, PartitionView
from headrace.ui.activity import DemoActivity, PipelineActivity
from headrace.ui.documents import activity_document


def plan(checkpoint: Path, number: int, planned: float, *sources: dict[str, Any]) -> None:
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    lines = ["v1", json.dumps({"batchTimestampMs": round(planned * 1000)}), *map(json.dumps, sources)]
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))


def finish(checkpoint: Path, number: int) -> None:
    (checkpoint / "commits" / str(number)).write_text("v1\n{}")


def view_of(*groups: GroupView) -> ClusterView:
    return ClusterView(1000.0, 0.1, "c", (), {}, groups)


def test_a_batch_has_the_records_since_the_batch_before(tmp_path: Path) -> None:
    plan(tmp_path, 0, 100.0, {"orders": {"0": 10, "1": 5}})
    finish(tmp_path, 0)
    plan(tmp_path, 1, 110.0, {"orders": {"0": 30, "1": {"frontier": 9, "holes": {"6": 8}}, "2": 7}})
    first, second = read_batches(tmp_path)
    assert (first.number, first.records, first.is_exact, first.planned) == (0, 15, False, 100.0)
    assert first.finished == pytest.approx(time.time(), abs=60)
    # A partition that the batch before did not have started somewhere: it is not counted.
    assert (second.number, second.records, second.is_exact, second.finished) == (1, 22, True, None)


def test_batches_of_other_sources_have_no_records_and_broken_files_are_left_out(tmp_path: Path) -> None:
    plan(tmp_path / "a", 0, 100.0, {"logOffset": 0})
    plan(tmp_path / "b", 0, 100.0, {"orders": {"0": 10}})
    (tmp_path / "b" / "offsets" / "1").write_text("")  # Spark is writing it
    (tmp_path / "b" / "offsets" / ".1.tmp").write_text("x")
    assert [(it.query, it.number, it.records) for it in read_batches(tmp_path)] == [("a", 0, None), ("b", 0, 10)]


def test_only_batches_of_this_run_are_read(tmp_path: Path) -> None:
    plan(tmp_path, 0, 100.0, {"orders": {"0": 10}})
    plan(tmp_path, 1, 200.0, {"orders": {"0": 12}})
    assert [(it.number, it.records) for it in read_batches(tmp_path, since=150.0)] == [(1, 2)]
    assert read_batches(tmp_path / "missing") == []


def test_a_pipeline_has_its_step_tables_and_batches(tmp_path: Path) -> None:
    activity = PipelineActivity("shop", tmp_path)
    activity.on_event({"stage": "running the flows"})
    activity.on_event({"message": "Flow spark_catalog.default.orders is RUNNING."})
    activity.on_event({"message": "Run is COMPLETED."})
    activity.on_event({"counts": [{"name": "orders", "before": 3, "rows": 10}]})
    plan(tmp_path / "orders", 0, time.time() + 1, {"orders": {"0": 10}})
    activity.refresh(is_due=True)
    document = activity.document
    assert (document.head["title"], document.head["stage"], document.head["over"]) == (
        "shop",
        "running the flows",
        False,
    )
    assert document.head["tables"] == [{"name": "orders", "state": "running", "before": 3, "rows": 10}]
    assert [(it["query"], it["rows"], it["seconds"]) for it in document.rows.values()] == [("orders", 10, None)]


@pytest.mark.parametrize(("failed", "stage"), [(None, "finished"), ("no memory", "failed")])
def test_a_pipeline_that_has_ended_says_how(tmp_path: Path, failed: str | None, stage: str) -> None:
    activity = PipelineActivity("shop", tmp_path)
    activity.end(failed)
    head = activity.document.head
    assert (head["over"], head["stage"], head["failed"]) == (True, stage, failed)


def test_a_pipeline_shows_how_far_behind_its_queries_are(tmp_path: Path) -> None:
    part = PartitionView(TopicPartition("orders", 0), next=3, begin=0, end=10, lag=7, seconds=2.0)
    view = view_of(
        GroupView(f"{tmp_path}/orders/0", "spark", "batch 1", partitions=(part,)),
        GroupView("/elsewhere/0", "spark", "batch 1", partitions=(part,)),
        GroupView("g", "classic", "Stable", partitions=(part,)),
    )
    head = activity_document(PipelineActivity("shop", tmp_path), view).head
    assert head["queries"] == [{"query": "orders/0", "lag": 7, "seconds": 2.0}]
    assert activity_document(PipelineActivity("shop", tmp_path), None).head["queries"] == []


def test_a_demo_shows_its_groups_and_how_far_behind_they_are() -> None:
    activity = DemoActivity("Crash", {"plain": "crash-1-plain"}, {"plain": "one lane"})
    activity.on_step("reading", {"plain": 0.123})
    activity.on_step("too soon", {"plain": 0.5})  # published twice a second
    part = PartitionView(TopicPartition("crash", 0), next=3, begin=0, end=10, lag=7, open=((3, 10),))
    document = activity_document(activity, view_of(GroupView("crash-1-plain", "classic", "Stable", partitions=(part,))))
    (reader,) = document.head["readers"]
    assert (document.head["stage"], document.head["lags"]) == ("reading", {"plain": 7})
    assert (reader["label"], reader["behind"], [it[1] for it in reader["series"]]) == ("one lane", 0.12, [0.12])
    assert document.rows["plain/crash-0"]["reader"] == "plain"
    activity.end()
    assert (activity.document.head["over"], activity.document.head["stage"]) == (True, "finished")
