"""`headrace run` and `headrace new`: the pipeline's tables equal those that plain Python computes from the sample."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pandas
import psutil
import pytest

from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, write
from support.brokers.secured import SecuredBroker
from support.brokers.topic_contents import oracle_rows
from support.harness.browser import has_browser
from support.harness.page_watcher import PageWatcher, watched_page
from support.harness.shell import headrace

# A busy machine makes Spark slow.
pytestmark = [pytest.mark.timeout(900), pytest.mark.pyspark("4.1")]

ROOT = Path(__file__).parent.parent.parent
PICTURES = ROOT / "build" / "ui"
FIRST, MORE = 6_000, 1_500
WITH_COLUMN = 'withColumn("reason", F.expr(f"coalesce(value_error, {rules})"))'


def expected(count: int) -> tuple[Counter[str], dict[tuple[str, datetime], list[dict[str, Any]]]]:
    """The reasons of rejected readings, and all others by road and minute, computed without Spark and its rules."""
    sample = runpy.run_path(str(ROOT / "pipelines" / "traffic" / "sample.py"))
    reasons: Counter[str] = Counter()
    minutes = defaultdict(list)
    for _, value, _ in sample["records"](0, count):
        try:
            reading = json.loads(value)
        except ValueError:
            reasons["not JSON"] += 1
            continue
        try:
            at = datetime.fromisoformat(reading["at"])
        except ValueError:
            reasons["no time"] += 1
            continue
        if reading["road"] is None:
            reasons["no sensor or road"] += 1
        elif reading["speed"] is None:
            reasons["no speed"] += 1
        elif reading["speed"] > 250:
            reasons["speed out of range"] += 1
        elif reading["limit"] < 1:
            reasons["limit out of range"] += 1
        else:
            minutes[reading["road"], at.replace(second=0, microsecond=0, tzinfo=None)].append(reading)
    return reasons, minutes


def table(project: Path, name: str) -> pandas.DataFrame:
    return pandas.read_parquet(project / "state" / "tables" / "city.db" / name)


def named(reason: str) -> str:
    """The name of a reason here: those of the source say what is wrong, and where."""
    if "invalid JSON" in reason:
        return "not JSON"
    return "no time" if reason == '$.at: "now" is not a timestamp in ISO 8601' else reason


def check_tables(project: Path, count: int) -> None:
    reasons, minutes = expected(count)
    raw = table(project, "readings_raw")
    assert len(raw) == count
    assert len(raw[["partition", "offset"]].drop_duplicates()) == count
    rejected = table(project, "readings_rejected")
    assert Counter(map(named, rejected["reason"])) == reasons
    assert set(zip(rejected["partition"], rejected["offset"], strict=True)) <= set(
        zip(raw["partition"], raw["offset"], strict=True)
    )
    assert len(table(project, "readings")) == count - len(rejected)
    gold = table(project, "congestion")
    found = {(row.road, row.minute.to_pydatetime().replace(tzinfo=None)): row for row in gold.itertuples()}
    assert found.keys() == minutes.keys()
    for place, readings in minutes.items():
        speed = sum(it["speed"] for it in readings) / len(readings)
        assert found[place].readings == len(readings)
        assert found[place].speed == pytest.approx(speed, abs=0.051)
        assert found[place].congestion == pytest.approx(max(0.0, 1 - speed / readings[0]["limit"]), abs=0.0051)
        occupancy = sum(it["occupancy"] for it in readings) / len(readings)
        assert found[place].occupancy == pytest.approx(occupancy, abs=0.00051)


def check_page(page: PageWatcher) -> None:
    """A browser has seen the run from its start to its end."""
    assert (page.has_ended, page.complaints) == (True, [])
    assert any("starting Spark" in text for text in page.texts)
    assert any("running the flows" in text and "readings_raw\nrunning" in text for text in page.texts), page.texts
    lines = [" ".join(line.split()) for line in page.last.splitlines() if line.strip()]
    assert lines[1].startswith("finished · ")
    assert f"{FIRST:,} +{FIRST:,}" in lines  # the rows of the table, and how many are new
    assert f"≤ {FIRST:,}" in page.last  # its first batch
    assert any("up to date" in line for line in lines)


def is_of_a_pipeline(process: psutil.Process) -> bool:
    try:
        return "pipeline_process" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return False


@pytest.mark.parametrize("runs", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_the_traffic_pipeline_fills_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    project = tmp_path / "traffic"
    shutil.copytree(ROOT / "pipelines" / "traffic", project, ignore=shutil.ignore_patterns("state"))
    with (project / "spark-pipeline.yml").open("a") as spec:
        spec.write("database: city\n")
    monkeypatch.chdir(tmp_path)
    options = ("--master", "local[2]")
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(watched_page(PICTURES / "pipeline.png")) if has_browser() else None
        shown = () if page is None else ("--ui", "--ui-port", str(page.port))
        done = headrace("run", "traffic", *options, *shown, "--sample", str(FIRST))
    assert done.code == 0, done.err
    if page is not None:
        check_page(page)
    rows = {row[0]: row[1:] for row in done.rows if len(row) == 5}
    assert rows["readings_raw"][:2] == [f"{FIRST:,}", f"{FIRST:,}"]
    assert float(rows["readings_raw"][2]) > 0
    assert f"{FIRST:,} new records from Kafka in " in done.text
    assert "picture: traffic/state/report.html, traffic/state/report.png\n" in done.text
    assert (project / "state" / "report.png").read_bytes().startswith(b"\x89PNG")
    page_of_run = (project / "state" / "report.html").read_text()
    assert "Ring 2" in page_of_run
    assert "http" not in page_of_run.replace("http://www.w3.org", "")  # only names of namespaces
    assert "tables: traffic/state/tables/city.db, log: traffic/state/run.log\n" in done.text
    assert "lag: 0 records in 6 partitions\n" in done.text
    assert done.text.count("A1") >= 1  # the sample of the gold table
    check_tables(project, FIRST)
    query = next(line for line in done.text.splitlines() if "read_parquet" in line)
    asked = subprocess.run(["sh", "-c", query.replace("python", sys.executable, 1)], capture_output=True, timeout=200)
    assert b"congestion" in asked.stdout, asked.stderr
    if runs == 1:
        return

    # Spark resolves `withColumn` when it is defined: the table of the first run must not hide that of this one.
    silver = project / "transformations" / "silver.py"
    text = silver.read_text()
    silver.write_text(text.replace('select("*", F.expr(f"coalesce(value_error, {rules}) AS reason"))', WITH_COLUMN))
    assert silver.read_text() != text
    # The newest readings first: two batches.
    bronze = project / "transformations" / "bronze.py"
    bronze.write_text(bronze.read_text().replace('"50000"', str(MORE - 500)))
    again = headrace("run", "traffic", *options, "--sample", str(MORE))
    assert again.code == 0, again.err
    assert f"{FIRST + MORE:,} records in readings, {MORE:,} of them new" in again.err
    assert "refreshing" not in again.err, "one pass is enough"
    rows = {row[0]: row[1:] for row in again.rows if len(row) == 5}
    assert rows["readings_raw"][:2] == [f"{FIRST + MORE:,}", f"{MORE:,}"]
    assert f"{MORE:,} new records from Kafka in " in again.text
    assert re.search(r"newest record in readings_raw after .* s, the backlog of \d+ older records after", again.text)
    check_tables(project, FIRST + MORE)
    assert not [each for each in psutil.Process().children(recursive=True) if is_of_a_pipeline(each)]


def expected_alerts(readings: list[dict[str, Any]], threshold: float) -> dict[tuple[str, datetime], float]:
    """The congestion of each road, for each minute in which it becomes congested."""
    by_minute: dict[tuple[str, datetime], list[float]] = defaultdict(list)
    for reading in readings:
        minute = datetime.fromisoformat(reading["at"]).replace(second=0, microsecond=0)
        by_minute[reading["road"], minute].append(1 - reading["speed"] / reading["limit"])
    congestion = {place: sum(values) / len(values) for place, values in by_minute.items()}
    last = max(datetime.fromisoformat(reading["at"]) for reading in readings) - timedelta(seconds=30)
    return {
        (road, minute): value
        for (road, minute), value in congestion.items()
        if congestion.get((road, minute - timedelta(minutes=1)), 0.0) < threshold <= value
        and minute + timedelta(minutes=1) <= last
    }


@pytest.mark.soak
def test_a_pipeline_without_its_state_starts_from_the_beginning(tmp_path: Path, servers: str, admin: Admin) -> None:
    """Also with an exactly-once sink: the cluster still has the decisions of the deleted checkpoints."""
    project = tmp_path / "traffic"
    shutil.copytree(ROOT / "pipelines" / "traffic", project, ignore=shutil.ignore_patterns("state"))
    topic, alerts = admin.create("readings", 6), admin.create("alerts")
    names = ("--conf", f"traffic.topic={topic}", "--conf", f"traffic.alerts={alerts}")
    records = list(runpy.run_path(str(ROOT / "pipelines" / "traffic" / "sample.py"))["records"](40_000, 8_000))
    write(servers, topic, [Outgoing(value, key, number % 6) for number, (key, value, _) in enumerate(records)])
    counts = []
    for _ in range(2):
        done = headrace("run", str(project), "-b", servers, "--master", "local[2]", *names)
        assert done.code == 0, done.err
        counts.append(len(oracle_rows(servers, alerts, isolation="read_committed")))
        shutil.rmtree(project / "state")
    assert counts == [counts[0], 2 * counts[0]]
    assert counts[0], "the sample must have roads that become congested"


@pytest.mark.soak
def test_the_traffic_pipeline_writes_each_alert_once(tmp_path: Path, servers: str, admin: Admin) -> None:
    project = tmp_path / "traffic"
    shutil.copytree(ROOT / "pipelines" / "traffic", project, ignore=shutil.ignore_patterns("state"))
    topic, alerts = admin.create("readings", 6), admin.create("alerts")
    spec = project / "spark-pipeline.yml"
    text = spec.read_text().replace("traffic.topic: readings", f"traffic.topic: {topic}")
    spec.write_text(text.replace("traffic.alerts: alerts", f"traffic.alerts: {alerts}"))
    records = runpy.run_path(str(ROOT / "pipelines" / "traffic" / "sample.py"))["records"]
    valid = []
    for first, count in ((40_000, 8_000), (48_000, 8_000)):
        rows = list(records(first, count))
        write(servers, topic, [Outgoing(value, key, number % 6) for number, (key, value, _) in enumerate(rows)])
        done = headrace("run", str(project), "-b", servers, "--master", "local[2]")
        assert done.code == 0, done.err
        for _, value, _ in rows:
            with contextlib.suppress(ValueError, TypeError):
                reading = json.loads(value)
                datetime.fromisoformat(reading["at"])
                if reading["road"] and 0 <= reading["speed"] <= 250 and reading["limit"] > 0:
                    valid.append(reading)
    found = [json.loads(row.value or b"") for row in oracle_rows(servers, alerts, isolation="read_committed")]
    wanted = expected_alerts(valid, 0.3)
    assert wanted, "the sample must have roads that become congested"
    assert sorted((alert["road"], alert["minute"][:16]) for alert in found) == sorted(
        (road, minute.isoformat()[:16]) for road, minute in wanted
    )


class CommandLines(threading.Thread):
    """Collects the command lines of all processes while the block runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.1):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.seen.add(path.read_text(errors="replace"))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def contents(directory: Path) -> Iterator[bytes]:
    """The contents of all files in the directory, except those that are removed meanwhile."""
    for where, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield Path(where, name).read_bytes()


def test_a_new_project_that_fails_shows_its_cause(tmp_path: Path, secured: SecuredBroker) -> None:
    """With a secured cluster: its password is in no command line, log, or remaining file."""
    project = tmp_path / "My Shop"
    made = headrace("new", str(project))
    assert made.code == 0
    assert made.text.endswith(f"headrace run {shlex.quote(str(project))}\n")
    assert "my_shop.topic: orders" in (project / "spark-pipeline.yml").read_text()
    assert len(list(runpy.run_path(str(project / "sample.py"))["records"](0, 10))) == 10
    assert headrace("new", str(project)).code == 2

    (project / "transformations" / "totals.sql").write_text("CREATE MATERIALIZED VIEW totals AS SELECT * FROM nowhere;")
    with CommandLines() as lines:
        done = headrace("run", str(project), "-F", str(secured.broker.client_properties), "--master", "local[1]")
    assert any("org.apache.spark" in line and str(project) in line for line in lines.seen)
    left = list(contents(project / "state"))
    password = secured.broker.client_config["sasl.password"]
    assert not [text for text in [*lines.seen, done.text, done.err] if password in text]
    assert not [text for text in left if password.encode() in text]
    assert (done.code, done.out) == (1, b"")
    assert done.err.splitlines()[-1].startswith("headrace: the pipeline failed: ")
    assert "nowhere" in done.err.splitlines()[-1]
    assert done.err.endswith(f"(log: {project / 'state' / 'run.log'})\n")
    assert "nowhere" in (project / "state" / "run.log").read_text()
    assert not (project / "state" / "task.json").exists()


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "starting Apache Kafka"),
        pytest.param(signal.SIGINT, "starting Spark", marks=pytest.mark.soak),
        (signal.SIGTERM, "running the flows"),
    ],
)
def test_a_signal_ends_a_pipeline_with_its_broker_and_spark(
    tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    project, temporary = tmp_path / "traffic", tmp_path / "tmp"
    shutil.copytree(ROOT / "pipelines" / "traffic", project, ignore=shutil.ignore_patterns("state"))
    temporary.mkdir()
    command = [sys.executable, "-m", "headrace", "run", str(project), "--sample", "100", "--master", "local[1]"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith(moment):
                break
        family = psutil.Process(process.pid).children(recursive=True)
        started = time.monotonic()
        process.send_signal(number)
        out, rest = process.communicate(timeout=150)
    took = time.monotonic() - started
    assert (process.returncode, out) == (128 + number, ""), (said, rest)
    assert "the next run resumes where this one stopped" in rest
    assert took < 10  # three seconds on a machine without other work
    # Workers of Spark end when they notice that their JVM is gone.
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    assert not list(temporary.iterdir())
    assert not {"settings.json", "task.json"}.intersection(os.listdir(project / "state"))


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("run", "."), 2, "no spark-pipeline.yml in ."),
        (("run", "/no/such/place"), 2, "does not exist"),
        (("run", "PROJECT", "-b", "x:1", "--sample", "5"), 2, "--sample cannot be combined with -b"),
        (("run", "PROJECT", "--conf", "nonsense"), 2, "is not of the form NAME=VALUE"),
        (("run", "PROJECT", "-C", "nonsense"), 2, "is not of the form NAME=VALUE"),
        (("run", "PROJECT"), 1, "sample.py does not define PARTITIONS"),
        (("run", "PROJECT", "-C", "bootstrap.servers=x:1", "--sample", "5"), 2, "--sample cannot be combined with -b"),
        (("run", "BARE", "--sample", "5"), 2, "--sample needs sample.py, which bare does not have"),
        (("run",), 2, "Missing argument 'DIRECTORY'"),
        (("new",), 2, "Missing argument 'DIRECTORY'"),
    ],
)
def test_run_refuses_bad_input_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("project", "bare"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spark-pipeline.yml").write_text("name: x\n")
    (tmp_path / "project" / "sample.py").write_text("TOPIC = 'x'\n")
    done = headrace(*(arg.lower() if arg in ("PROJECT", "BARE") else arg for arg in args))
    assert (done.code, done.out) == (code, b"")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_state_directory_belongs_to_one_cluster(tmp_path: Path, secured: SecuredBroker) -> None:
    """The offsets of its checkpoints are invalid in another cluster."""
    (tmp_path / "spark-pipeline.yml").write_text("name: x\n")
    state = tmp_path / "elsewhere" / "state"
    state.mkdir(parents=True)
    (state / "cluster").write_text("another\n")
    broker = secured.broker
    done = headrace("run", str(tmp_path), "-F", str(broker.client_properties), "--state", str(state))
    assert (done.code, done.out) == (1, b"")
    assert f"(id another; this cluster is {broker.cluster_id}): choose another directory" in done.err
    assert sorted(os.listdir(state)) == ["cluster", "run.lock"], "nothing was started"


def test_a_pipeline_has_one_run_at_a_time(tmp_path: Path) -> None:
    from headrace.local.filelock import FileLock

    (tmp_path / "state").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text("name: x\n")
    lock = FileLock(tmp_path / "state" / "run.lock")
    assert lock.acquire(0)
    done = headrace("run", str(tmp_path), "-b", "127.0.0.1:1")
    lock.release()
    assert done.code == 1
    assert done.err.startswith("headrace: another run of this pipeline is in progress")
    assert os.listdir(tmp_path / "state") == ["run.lock"]  # nothing was started
