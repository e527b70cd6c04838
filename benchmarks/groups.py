"""Runs the measurements of groups, each in a separate process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

from headrace.local import LocalBroker

from . import child, consumption, crowds, joining, pinning, rebalancing, wide_topics
from .contenders import reading_of_child
from .datasets import create_topic
from .process import CommandFailed, run
from .readers import Job
from .results import Figure, Figures, Measurement, Outcome

Say = Callable[[str], None]
JAVA = "Java"
_TIMEOUT = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class Groups:
    """`consumption` by style and subscription; `first_records` and `wide_topics` by client, then protocol;
    `rebalances` and `crowds` by client, then protocol and size. Times are milliseconds, those of crowds seconds."""

    consumption: Mapping[str, Mapping[str, Outcome]]
    first_records: Mapping[str, Figures]
    rebalances: Mapping[str, Figures]
    wide_topics: Mapping[str, Figures]
    crowds: Mapping[str, Figures]


def measure(job: Job, repeat: int, say: Say) -> Groups:
    """`job` has the topic to read."""
    return Groups(
        _consumption(job, repeat, say),
        _first_records(job.servers, say),
        _rebalances(say),
        {client: _wide_topics(client, say) for client in wide_topics.CLIENTS},
        _crowds(job.servers, say),
    )


def _consumption(job: Job, repeat: int, say: Say) -> Mapping[str, Mapping[str, Outcome]]:
    found = {style: dict.fromkeys(consumption.WAYS, Outcome()) for style in consumption.STYLES}
    for number in range(1, repeat + 1):
        for style, outcomes in found.items():
            for way in outcomes:
                about = f"{number}/{repeat} {consumption.STYLES[style]}, {consumption.WAYS[way]}"
                command = child.command(f"consumption.{style}", dataclasses.replace(job, protocol=way))
                try:
                    finished = run(command, _TIMEOUT + job.records / 10_000)
                    reading = reading_of_child(finished.output)
                except (CommandFailed, ValueError) as error:
                    say(f"{about}: failed: {error}")
                    outcomes[way] = outcomes[way].with_failure(str(error))
                    continue
                measurement = Measurement(
                    reading.records,
                    reading.seconds,
                    reading.cpu_seconds,
                    finished.cpu_seconds,
                    finished.peak_bytes,
                )
                say(f"{about}: {measurement.rate:,.0f} records/s")
                outcomes[way] = outcomes[way].with_measurement(measurement)
    return found


def _first_records(servers: str, say: Say) -> Mapping[str, Figures]:
    job = Job(servers, "joining", joining.PARTITIONS, joining.PARTITIONS * 10)
    create_topic(job.topic, job.partitions, servers)
    run(child.command("filling.evenly", job), _TIMEOUT)
    # The first group of a cluster waits for __consumer_offsets to be created.
    run(child.command("joining.headrace", dataclasses.replace(job, protocol="classic")), _TIMEOUT)
    found: dict[str, Figures] = {}
    for client in (*joining.CLIENTS, JAVA):
        found[client] = {}
        for protocol, name in joining.PROTOCOLS.items():
            asked = dataclasses.replace(job, protocol=protocol)
            if client == JAVA:
                figure = figures(joining.java_command_line(asked), joining.figures_of_java)
            else:
                figure = figures(child.command(f"joining.{client}", asked), json.loads)
            say(f"first record: {client}, {name}: {_shown(figure)}")
            found[client][protocol] = figure
    return found


def _rebalances(say: Say) -> Mapping[str, Figures]:
    say("starting a broker with short heartbeats")
    with pinning.broker(LocalBroker(properties=rebalancing.BROKER)) as broker:
        return rebalances(broker.bootstrap_servers, say)


def rebalances(servers: str, say: Say) -> Mapping[str, Figures]:
    topic = Job(servers, "rebalancing", rebalancing.PARTITIONS, 0)
    create_topic(topic.topic, topic.partitions, servers)
    found: dict[str, Figures] = {}
    for client in (*rebalancing.CLIENTS, JAVA):
        found[client] = {}
        for protocol, name in joining.PROTOCOLS.items():
            for size in rebalancing.SIZES:
                job = dataclasses.replace(topic, protocol=protocol, members=size)
                if client == JAVA:
                    figure = figures(rebalancing.java_command_line(job), rebalancing.figures_of_java)
                else:
                    figure = figures(child.command(f"rebalancing.{client}", job), json.loads)
                say(f"rebalance: {client}, {name}, {size} members: {_shown(figure)}")
                found[client][f"{protocol} {size}"] = figure
    return found


def _wide_topics(client: str, say: Say) -> Figures:
    """With a broker of its own for each client: only the first group of a broker waits for what it creates once."""
    say(f"starting a broker with a topic of {wide_topics.PARTITIONS:,} partitions")
    with LocalBroker() as broker:
        topic = Job(broker.bootstrap_servers, "wide", wide_topics.PARTITIONS, wide_topics.RECORDS)
        create_topic(topic.topic, topic.partitions, topic.servers)
        run(child.command("filling.evenly", topic), _TIMEOUT)
        found: Figures = {}
        for protocol, name in joining.PROTOCOLS.items():
            command = child.command(f"wide_topics.{client}", dataclasses.replace(topic, protocol=protocol))
            samples = [figures(command, json.loads) for _ in range(wide_topics.SAMPLES)]
            found[protocol] = wide_topics.summary(samples)
            say(f"first record of {topic.partitions:,} partitions: {client}, {name}: {_shown(found[protocol])}")
        return found


def _crowds(servers: str, say: Say) -> Mapping[str, Figures]:
    topic = Job(servers, "crowd", crowds.PARTITIONS, 0)
    create_topic(topic.topic, topic.partitions, servers)
    found: dict[str, Figures] = {client: {} for client in crowds.CLIENTS}
    for protocol, name in joining.PROTOCOLS.items():
        for size in crowds.SIZES:
            for client in crowds.CLIENTS:
                job = dataclasses.replace(topic, protocol=protocol, members=size)
                figure = figures(child.command(f"crowds.{client}", job), json.loads)
                shown = figure if isinstance(figure, str) else crowds.shown(figure)
                say(f"{size} consumers in a process: {client}, {name}: {shown}")
                found[client][f"{protocol} {size}"] = figure
    return found


def figures(command: Sequence[str], parse: Callable[[str], dict[str, float]], timeout: float = _TIMEOUT) -> Figure:
    """The figures that the command prints, or its error."""
    try:
        return parse(run(command, timeout).output)
    except (CommandFailed, ValueError) as error:
        return f"failed: {error}"


def _shown(figure: Figure) -> str:
    return figure if isinstance(figure, str) else ", ".join(f"{name} {ms:.0f} ms" for name, ms in figure.items())
