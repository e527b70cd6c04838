"""`headrace run`: runs a Spark pipeline, including its broker, with one command.

    DIR/spark-pipeline.yml     the project, in the format of Spark Declarative Pipelines
    DIR/sample.py              optional: TOPIC, PARTITIONS and records(first, count), for sample data
    DIR/state/                 the results of runs: tables, checkpoints, the catalog, the broker's data, run.log

The next run processes the new records. To start from the beginning, delete DIR/state. Checkpoints belong to one
cluster, whose id is in `state/cluster`: in another cluster, the same offsets are other records. `state/id` names the
checkpoints themselves, for what must not outlive them, such as the `sinkId` of an exactly-once sink.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..monitor.batches import read_batches
from .commands import command
from .connection_options import Settings, client_options, client_settings, names_and_values
from .elapsed import waiting
from .formatting import say
from .option_types import WholeNumber
from .pipeline_chart import draw_chart
from .pipeline_checks import check_packages, check_pythons, check_spark_home
from .pipeline_launch import OTHER_STATE, PipelineError, PipelineOutcome, SparkProcess
from .pipeline_report import ASK_WITHIN, lag_line, last_values, report, report_topic
from .ui import check_packages as check_page_packages
from .ui import page_beside, page_options

if TYPE_CHECKING:
    from ..local import LocalBroker
    from ..ui.activity import PipelineActivity

SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")
SAMPLE = "sample.py"
STATE_ID = "headrace.state.id"
FIRST_SAMPLE, LATER_SAMPLE = 200_000, 60_000
_INTERRUPTED_BROKER_STOPS_WITHIN = 1.0
# The broker runs for a minute, which is too short for Java's optimizing compiler. Spark needs the processors.
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1",)


@command(
    epilog="""\b
Examples:
  headrace run pipelines/traffic                        starts its own broker and writes sample data
  headrace run pipelines/traffic -b localhost:9092 --state traffic-tables    reads from a running cluster
  headrace run DIR -b broker:9093 -F client.properties --master spark://host:7077
  headrace run DIR --conf spark.sql.shuffle.partitions=8
  headrace run pipelines/traffic --ui                   shows tables and micro-batches in a browser
"""
)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@client_options(default_servers="start a broker", reads_environment=False)
@click.option(
    "--master", default="local[*]", show_default=True, help="Spark's master, or sc://host of a Connect server."
)
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="A setting of Spark or of the pipeline.")
@click.option("--sample", type=WholeNumber(0), help="Records to write to its own broker.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for tables and checkpoints.  [default: DIRECTORY/state]",
)
@page_options
def run(
    settings: Settings,
    directory: Path,
    master: str,
    confs: tuple[str, ...],
    sample: int | None,
    state: Path | None,
    shows_page: bool,
    page_port: int,
) -> None:
    """Run the Spark pipeline in DIRECTORY once, until its tables have all records that are in Kafka now.

    Without -b (or bootstrap.servers in -C or -F), it starts its own broker and writes the project's sample, if there is
    one: 200,000 records in the first run, and 60,000 more in each later run. Tables, checkpoints and the log are in
    DIRECTORY/state. They belong to one cluster: for another cluster, choose another directory with --state.
    """
    spec = next((directory / name for name in SPECS if (directory / name).is_file()), None)
    if spec is None:
        raise click.BadParameter(
            f"no {SPECS[0]} in {directory}: `headrace new` creates a project", param_hint="DIRECTORY"
        )
    own_broker = not settings.get("bootstrap.servers")
    if sample is not None and not own_broker:
        raise click.UsageError(
            "--sample cannot be combined with -b: it writes to the broker that `headrace run` starts"
        )
    if sample is not None and not (directory / SAMPLE).is_file():
        raise click.UsageError(f"--sample needs {SAMPLE}, which {directory} does not have")
    check_packages()
    check_pythons(master)
    check_spark_home(master)
    if shows_page:
        check_page_packages()
    chosen = names_and_values(confs, "--conf")
    state = state or directory / "state"
    begun, since = time.monotonic(), time.time()
    with _locked(state), _announced_stop(), contextlib.ExitStack() as stack:
        is_remote = master.startswith("sc://")  # its executors may reach brokers that this machine cannot
        if not own_broker and not is_remote:
            _check_cluster(state, settings)
        spark = stack.enter_context(SparkProcess(spec, state, master, chosen))  # it starts while the broker does
        check = None
        if own_broker:
            broker = stack.enter_context(_own_broker(directory, state, sample, begun, on_interrupt=spark.close))
            settings["bootstrap.servers"] = broker.bootstrap_servers
            _check_cluster(state, settings)
            check = functools.partial(_check_broker, broker)
        activity = stack.enter_context(_page(directory, state, settings, page_port)) if shows_page else None
        stack.callback(spark.close)  # before the broker and the page, for which it would look
        configuration = {f"headrace.kafka.{name}": str(value) for name, value in settings.items()}
        configuration = {**configuration, STATE_ID: state_id(state), **chosen}
        outcome = spark.run(configuration, begun, activity, check)
        _report(directory, state, outcome, settings, since, begun)


@contextlib.contextmanager
def _announced_stop() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # SystemExit: SIGTERM and SIGHUP, see `handle_signals`
        say("stopped; the next run resumes where this one stopped")
        raise


def _report(
    directory: Path, state: Path, outcome: PipelineOutcome, settings: Settings, since: float, begun: float
) -> None:
    said = report(state, outcome, since, time.monotonic() - begun)
    if outcome.topic:
        with waiting(f"reading the last records in {outcome.topic}", begun, says=False):
            found = last_values(outcome.topic, settings)
        report_topic(outcome.topic, found)
    if read_batches(state / "checkpoints"):  # none on this machine: no streaming tables, or a remote server
        with waiting("requesting the lag", begun, says=False):
            lag = lag_line(state, settings)
        click.echo(lag)
    if outcome.chart:
        with waiting("drawing the picture", begun, says=False):
            drawn = draw_chart(state, outcome.chart, directory.absolute().name, said, since)
        click.echo(drawn)


@contextlib.contextmanager
def _page(directory: Path, state: Path, settings: Settings, port: int) -> Iterator[PipelineActivity]:
    from ..ui.activity import PipelineActivity

    checkpoints = state / "checkpoints"
    activity = PipelineActivity(directory.absolute().name, checkpoints)
    with page_beside(settings, port, activity, checkpoints=(checkpoints,)):
        try:
            yield activity
        except BaseException as error:
            activity.end(str(error) or "stopped")
            raise
        activity.end()


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    from ..local.errors import storage_error
    from ..local.filelock import FileLock

    lock = FileLock(state / "run.lock")
    try:
        state.mkdir(parents=True, exist_ok=True)
        is_free = lock.acquire(0)
    except OSError as error:
        raise storage_error(error, state, "the state directory", OTHER_STATE) from error
    if not is_free:
        raise PipelineError(f"another run of this pipeline is in progress ({state / 'run.lock'} is locked)")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _own_broker(
    directory: Path, state: Path, sample: int | None, begun: float, on_interrupt: Callable[[], None]
) -> Iterator[LocalBroker]:
    from ..local import LocalBroker
    from .broker import download_bar
    from .sample import load_sample, write_sample

    found = load_sample(directory)
    with download_bar() as progress:
        from ..local.kafka_home import DEFAULT_VERSION
        from ..local.prepare import prepare

        prepare(DEFAULT_VERSION, progress)
    with waiting("starting Apache Kafka on this machine", begun):
        broker = LocalBroker(data_dir=str(state / "broker"), java_options=_SHORT_LIVED).start()
    try:
        if found is not None:
            write_sample(found, broker.bootstrap_servers, sample, FIRST_SAMPLE, LATER_SAMPLE, state)
        yield broker
    except (KeyboardInterrupt, SystemExit):
        on_interrupt()  # Spark may be starting, and takes the processors that the broker needs to stop
        broker.stop(within=_INTERRUPTED_BROKER_STOPS_WITHIN)
        raise
    finally:
        with waiting("stopping Apache Kafka", begun, says=False):
            broker.stop()


def state_id(state: Path) -> str:
    """Deleted and created again, the directory has another one."""
    place, draft = state / "id", state / "id.draft"
    if not place.exists():
        draft.write_text(f"{uuid.uuid4().hex[:12]}\n")
        draft.replace(place)
    return place.read_text().strip()


def _check_broker(broker: LocalBroker) -> None:
    """Clients would retry for minutes. Raises PipelineError."""
    if not broker.live_brokers:
        raise PipelineError(
            f"the broker that `headrace run` started has ended during the run (log: {broker.log_path}). The next run "
            "starts it again, and resumes where this one stopped"
        )


def _check_cluster(state: Path, settings: Settings) -> None:
    """Check that the cluster is reachable (Spark would retry for minutes) and that the state belongs to it."""
    from .._aio.admin import AsyncAdmin

    async def ask() -> str:
        async with AsyncAdmin(client_settings(settings, ASK_WITHIN)) as admin:
            return await admin.cluster_id()

    place, found = state / "cluster", asyncio.run(ask())
    if not place.exists():
        place.write_text(f"{found}\n")
    elif (known := place.read_text().strip()) != found:
        raise PipelineError(
            f"the tables and checkpoints in {state} belong to another cluster "
            f"(id {known}; this cluster is {found}): {OTHER_STATE}"
        )
