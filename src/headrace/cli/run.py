"""`headrace run`: a pipeline of Spark's, from the broker to the tables, in one command.

    DIR/spark-pipeline.yml     the project, as Spark Declarative Pipelines have it
    DIR/sample.py              optional: TOPIC, PARTITIONS and records(first, count), to try it with
    DIR/state/                 what a run leaves: tables, checkpoints, the catalog, its broker's data, run.log

Run again, a pipeline takes what is new. Deleting DIR/state starts it afresh. Checkpoints are of one cluster, which
`state/cluster` names: in another one the same offsets are other records.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ..errors import HeadraceError
from .connection_options import Settings, client_options, client_settings, name_and_value
from .formatting import printable, say, table
from .spark_errors import Failures, cause_in

SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")
SAMPLE = "sample.py"
FIRST_SAMPLE, LATER_SAMPLE = 200_000, 20_000
_LOOK_EVERY = 0.1
_ASK_WITHIN = 10.0
_END_WITHIN = 20.0


class PipelineError(HeadraceError):
    """A run has failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineOutcome:
    tables: list[dict[str, Any]]
    seconds: float
    shown: dict[str, Any] | None
    location: str | None
    """The directory of the table that matters most; None if it is not on this machine."""


@click.command(
    epilog="""\b
Examples:
  headrace run pipelines/traffic                        a broker and a sample of its own
  headrace run pipelines/traffic -b localhost:9092 --state traffic-tables    the topic of a cluster
  headrace run DIR -b broker:9093 -F client.properties --master spark://host:7077
  headrace run DIR --conf spark.sql.shuffle.partitions=8
"""
)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@client_options(default_servers="one of its own", reads_environment=False)
@click.option(
    "--master", default="local[*]", show_default=True, help="Spark's master, or sc://host of a Connect server."
)
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="A setting of Spark or of the pipeline.")
@click.option("--sample", type=click.IntRange(0), help="Records to write to its own broker.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for tables and checkpoints.  [default: DIRECTORY/state]",
)
def run(
    settings: Settings,
    directory: Path,
    master: str,
    confs: tuple[str, ...],
    sample: int | None,
    state: Path | None,
) -> None:
    """Run the Spark pipeline in DIRECTORY once, until its tables have all records that are in Kafka now.

    Without -b (or bootstrap.servers in -C or -F) it starts a broker of its own and writes the project's sample, if
    there is one: 200,000 records the first time, and 20,000 more each time after that. Tables, checkpoints and the log
    are in DIRECTORY/state. They belong to one cluster: for another one, name another directory with --state.
    """
    spec = next((directory / name for name in SPECS if (directory / name).is_file()), None)
    if spec is None:
        raise click.BadParameter(
            f"no {SPECS[0]} in {directory}: `headrace new` makes a project", param_hint="DIRECTORY"
        )
    own_broker = not settings.get("bootstrap.servers")
    if sample is not None and not own_broker:
        raise click.UsageError(
            "--sample cannot be combined with -b: it writes to the broker that `headrace run` starts"
        )
    if sample is not None and not (directory / SAMPLE).is_file():
        raise click.UsageError(f"--sample writes what {SAMPLE} makes, and {directory} has none")
    _check_packages()
    chosen = dict(name_and_value(text, "--conf") for text in confs)
    state = state or directory / "state"
    state.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with _alone(state), contextlib.ExitStack() as stack:
        if own_broker:
            settings["bootstrap.servers"] = stack.enter_context(_own_broker(directory, state, sample))
        if not master.startswith("sc://"):  # whose executors may see brokers that this machine does not
            _check_cluster(state, settings)
        before = taken(state) or 0
        configuration = {f"headrace.kafka.{name}": str(value) for name, value in settings.items()} | chosen
        outcome = _spark(spec, state, master, configuration, begun)
        after = taken(state)
        report(state, outcome, None if after is None else after - before, time.monotonic() - begun)
        if after is not None:
            _report_lag(state, settings)


def _check_packages() -> None:
    for module, extra in (("pyspark", "spark"), ("grpc", "spark-connect"), ("yaml", "spark-connect")):
        try:
            __import__(module)
        except ImportError:
            raise PipelineError(f"pipelines need {module}: pip install 'headrace[{extra}]'") from None


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    from ..local.filelock import FileLock

    lock = FileLock(state / "run.lock")
    if not lock.acquire(0):
        raise PipelineError(f"another run of this pipeline is under way ({state / 'run.lock'} is locked)")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _own_broker(directory: Path, state: Path, sample: int | None) -> Iterator[str]:
    from ..local import LocalBroker
    from .broker import download_bar
    from .sample import load_sample, write_sample

    found = load_sample(directory)
    with download_bar() as progress:
        from ..local.kafka_home import DEFAULT_VERSION
        from ..local.prepare import prepare

        prepare(DEFAULT_VERSION, progress)
    say("starting Apache Kafka on this machine ...")
    with LocalBroker(data_dir=str(state / "broker")) as broker:
        if found is not None:
            write_sample(found, broker.bootstrap_servers, sample, FIRST_SAMPLE, LATER_SAMPLE, state)
        yield broker.bootstrap_servers


def _check_cluster(state: Path, settings: Settings) -> None:
    """Also that there is one: Spark would try for minutes."""
    from .._aio.admin import AsyncAdmin

    async def ask() -> str:
        async with AsyncAdmin(client_settings(settings, _ASK_WITHIN)) as admin:
            return await admin.cluster_id()

    place, found = state / "cluster", asyncio.run(ask())
    if not place.exists():
        place.write_text(f"{found}\n")
    elif (known := place.read_text().strip()) != found:
        raise PipelineError(
            f"the tables and checkpoints in {state} are of another cluster (id {known}, and this one is {found}): name "
            f"another place for those of this one with --state"
        )


def taken(state: Path) -> int | None:
    """How many offsets the checkpoints say were read. None if there are none here: of a pipeline without streaming
    tables, or on a Connect server elsewhere."""
    from .checkpoints import read_checkpoints, slowest

    try:
        done = slowest(found.done for found in read_checkpoints(state / "checkpoints"))
    except (HeadraceError, OSError):
        return None
    return sum(each.frontier - each.count_open for each in done.values())


def _spark(spec: Path, state: Path, master: str, configuration: dict[str, str], begun: float) -> PipelineOutcome:
    """Raises PipelineError with the cause in one line."""
    from ..local.process import GuardedProcess
    from .pipeline_process import Task

    log, events = state / "run.log", state / "events.jsonl"
    events.write_text("")
    task = Task(str(spec.absolute()), str(state.absolute()), str(events.absolute()), master, configuration)
    told = state / "task.json"
    told.unlink(missing_ok=True)
    with open(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(dataclasses.asdict(task), file)
    with log.open("wb") as output:
        command = [sys.executable, "-m", "headrace.cli.pipeline_process", str(told.absolute())]
        process = GuardedProcess(command, output=output, grace=_END_WITHIN)
    failures, found = Failures(), None
    try:
        for event in follow(events, process, begun):
            failures.add(cause_in(event.get("message", "")))
            failures.add(event.get("failed", ""))
            if "warning" in event:
                say(event["warning"])
            if "tables" in event:
                found = PipelineOutcome(**event)
    except (KeyboardInterrupt, SystemExit):  # SystemExit: SIGTERM and SIGHUP, see `handle_signals`
        process.send_signal(signal.SIGTERM)
        process.wait(_END_WITHIN)
        say("stopped; the next run resumes where this one stopped")
        raise
    finally:
        process.close()
    if found is None:
        raise PipelineError(
            f"the pipeline failed: {failures.cause or 'Spark exited without an error message'} (log: {log})"
        )
    return found


def follow(events: Path, process: Any, begun: float) -> Iterator[dict[str, Any]]:
    """What the child tells, until it ends. Shows what it is doing, and for how many seconds the command has run."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    doing = "starting Spark"

    def shown() -> str:
        return f"{printable(doing)} ({time.monotonic() - begun:.0f} s)"

    with console.status(Text(shown())) as status, events.open() as lines:
        over, line = False, ""
        while True:
            line += (more := lines.readline())
            if line.endswith("\n"):  # else the rest of it is still to be written
                event, line = json.loads(line), ""
                if said := event.get("stage") or event.get("message"):
                    doing = said.splitlines()[0]
                    if not console.is_terminal and "stage" in event:
                        say(f"{shown()} ...")
                yield event
            elif over and not more:
                return
            else:
                over = process.wait(_LOOK_EVERY)
            status.update(Text(shown()))  # of Spark's words none is markup


def report(state: Path, outcome: PipelineOutcome, new: int | None, seconds: float) -> None:
    rows = [(each["name"], each["rows"], each["rows"] - each["before"]) for each in outcome.tables]
    click.echo(table(("table", "rows", "new"), rows))
    if outcome.shown:
        click.echo("\n" + table(outcome.shown["columns"], outcome.shown["rows"]))
    took = f"{outcome.seconds:.1f} s"
    if new is not None:
        rate = new / outcome.seconds if outcome.seconds else 0.0
        took = f"{new:,} new records in {took} ({rate:,.0f} records/s)"
    click.echo(f"\n{took}, {seconds:.1f} s including startup")
    log = os.path.relpath(state / "run.log")
    if outcome.location is None:
        click.echo(f"log: {log}")
        return
    place = os.path.relpath(outcome.location)
    click.echo(f"tables: {os.path.dirname(place)}, log: {log}")
    click.echo(f"""{_python()} -c "import pandas; print(pandas.read_parquet('{place}'))\"""")


def _python() -> str:
    here = os.path.relpath(sys.executable)
    return "python" if here.startswith("..") else here


def _report_lag(state: Path, kafka: Settings) -> None:
    from .._aio.admin import AsyncAdmin
    from .lag_queries import checkpoint_sample

    async def ask() -> str:
        settings = client_settings(kafka, _ASK_WITHIN)
        async with AsyncAdmin(settings) as admin:
            sample = await checkpoint_sample(admin, settings, state / "checkpoints", ())
            return f"lag: {sample.lag:,} records in {len(sample.rows)} partitions"

    try:
        click.echo(asyncio.run(ask()))
    except (HeadraceError, OSError) as error:
        click.echo(f"lag: unknown ({error})")
