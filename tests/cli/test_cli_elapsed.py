"""`headrace run` shows the stage and its elapsed seconds while Spark runs."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from headrace.cli.pipeline_launch import follow
from headrace.local.process import GuardedProcess
from support.harness.terminal import terminal

# Replaces Spark: two stages, and a message between them that must not be interpreted as markup.
STAGES = """
import json, os, sys, time
with open(sys.argv[1], "a", buffering=1) as events:
    print(json.dumps({"stage": "starting Spark"}), file=events)
    while not os.path.exists(sys.argv[1] + ".shown"):
        time.sleep(0.01)  # polling, since another process gives no event
    time.sleep(2.2)  # the elapsed seconds
    line = json.dumps({"message": "Flow [/x] is RUNNING\\nmore"})
    print(line[:9], end="", file=events, flush=True)  # a line may be read before it is complete
    time.sleep(0.3)  # time to read half a line
    print(line[9:], file=events)
    time.sleep(1.0)  # the elapsed seconds
    print(json.dumps({"stage": "running the flows"}), file=events)
"""

FOLLOWING = f"""
import sys, time
from pathlib import Path
from headrace.cli.pipeline_launch import follow
from headrace.local.process import GuardedProcess
events = Path(sys.argv[1])
process = GuardedProcess([sys.executable, "-c", {STAGES!r}, str(events)], output=-3)
for event in follow(events, process, time.monotonic()):
    Path(f"{{events}}.shown").touch()
process.close()
"""


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.touch()
    return path


def test_run_shows_each_stage_with_the_seconds_since_the_start(events: Path, capfd: pytest.CaptureFixture[str]) -> None:
    began_before = 100.0
    process = GuardedProcess([sys.executable, "-c", STAGES, str(events)], output=-3)
    found = []
    for event in follow(events, process, time.monotonic() - began_before):
        found.append(event)
        Path(f"{events}.shown").touch()  # so that the next seconds begin when the first ones were shown
    process.close()
    assert [next(iter(event)) for event in found] == ["stage", "message", "stage"]
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("starting Spark (1")
    assert second.startswith("running the flows (1")
    seconds = [int(line.partition("(")[2].partition(" s) ...")[0]) for line in (first, second)]
    assert began_before <= seconds[0]
    assert seconds[0] + 3 <= seconds[1]


def test_on_a_terminal_the_seconds_go_on_while_nothing_is_said(events: Path) -> None:
    with terminal(str(events), command=(sys.executable, "-c", FOLLOWING)) as shown:
        shown.read_until("Flow [/x] is RUNNING (")
        assert re.search(r"starting Spark \([1-9]\d* s\)", shown.seen), shown.seen
        shown.read_rest()
    assert shown.process.returncode == 0, shown.seen
    assert "Traceback" not in shown.seen
