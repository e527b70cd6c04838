"""The cost of the exporter: CPU time of `headrace lag --serve` for a large cluster, with a real broker.

    python -m benchmarks.exporter --partitions 10000 --groups 500

Topics of 100 partitions each; every group has one member (joined, and silent: its session timeout is long) with its
part of all partitions, commits for them, and a lag. Records are written between passes, and each pass is scraped, as
Prometheus does. The broker runs on the same machine, in another process: its CPU time does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence

import psutil

from headrace import LocalBroker, Producer, TopicPartition
from headrace._aio.admin import AsyncAdmin
from headrace._aio.survey import Survey
from headrace._protocol.group_data import MemberSubscription, write_assignment, write_subscription
from headrace._protocol.messages import JOIN_GROUP, OFFSET_COMMIT, SYNC_GROUP

IN_A_TOPIC = 100
RECORDS, COMMITTED = 10, 4  # of each partition
COMMIT_BY_NAME = dataclasses.replace(OFFSET_COMMIT, highest=9)
_BROKER = {
    "group.initial.rebalance.delay.ms": 0,
    "group.max.session.timeout.ms": 7_200_000,
    "log.index.size.max.bytes": 65_536,
    "log.segment.bytes": 1_048_576,
}


def topics_of(partitions: int) -> dict[str, int]:
    full, rest = divmod(partitions, IN_A_TOPIC)
    sizes = [IN_A_TOPIC] * full + ([rest] if rest else [])
    return {f"orders-{number:03}": size for number, size in enumerate(sizes)}


async def make_topics(servers: str, topics: dict[str, int]) -> None:
    async with AsyncAdmin(bootstrap_servers=servers, default_api_timeout_ms=120_000) as admin:
        for name, size in topics.items():
            await admin.create_topic(name, size, 1)


def fill(servers: str, partitions: Sequence[TopicPartition], records: int) -> None:
    with Producer(bootstrap_servers=servers, linger_ms=50) as producer:
        for tp in partitions:
            for number in range(records):
                producer.send(tp.topic, b"record %d" % number, partition=tp.partition)


async def make_groups(servers: str, partitions: Sequence[TopicPartition], groups: int) -> None:
    """One member each, which owns and has committed every `groups`-th partition."""
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        await admin.committed("any")  # the broker creates its topic for commits
    async with Survey({"bootstrap.servers": servers}, timeout=60.0) as survey:
        node = (await survey.cluster()).brokers[0].id
        for number in range(groups):
            await _join(survey, node, f"group-{number:03}", partitions[number::groups])


async def _join(survey: Survey, node: int, group: str, owned: Sequence[TopicPartition]) -> None:
    subscription = write_subscription(MemberSubscription(frozenset(tp.topic for tp in owned)))
    fields = {
        "group_id": group,
        "session_timeout": 7_200_000,
        "rebalance_timeout": 300_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription}],
        "reason": None,
    }
    first = await survey.call(node, JOIN_GROUP, fields)
    joined = await survey.call(node, JOIN_GROUP, {**fields, "member_id": first.member_id})
    identity = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = {
        **identity,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": joined.member_id, "assignment": write_assignment(owned)}],
    }
    body = await survey.call(node, SYNC_GROUP, synced)
    assert body.error_code == 0, body
    topics: dict[str, list[dict[str, object]]] = {}
    for tp in owned:
        commit = {"partition_index": tp.partition, "committed_offset": COMMITTED, "committed_leader_epoch": -1}
        topics.setdefault(tp.topic, []).append({**commit, "committed_metadata": ""})
    committed = {
        **identity,
        "generation_id_or_member_epoch": joined.generation_id,
        "group_instance_id": None,
        "topics": [{"name": name, "partitions": found} for name, found in topics.items()],
    }
    body = await survey.call(node, COMMIT_BY_NAME, committed)
    assert all(it.error_code == 0 for topic in body.topics for it in topic.partitions), body


@contextlib.contextmanager
def exporter(servers: str, interval: float) -> Iterator[tuple[psutil.Process, str]]:
    command = [sys.executable, "-m", "headrace", "lag", "-b", servers, "--serve", ":0", "--interval", str(interval)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+/metrics", process.stdout.readline())
            assert found is not None
            yield psutil.Process(process.pid), found.group()
        finally:
            process.terminate()
            process.wait(30)


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        return str(response.read(), "utf-8")


def value(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def passes_of(url: str, above: float, within: float = 120.0) -> tuple[float, str]:
    """Waits for a pass that is complete, by scraping twice a second."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        text = scraped(url)
        if (passes := value(text, "headrace_exporter_passes_total")) > above:
            return passes, text
        time.sleep(0.5)
    raise TimeoutError("the exporter has no new pass")


def measure(servers: str, partitions: Sequence[TopicPartition], interval: float, passes: int, warm_up: int) -> None:
    def used(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    with exporter(servers, interval) as (process, url):
        done, text = 0.0, ""
        while done < warm_up:
            done, text = passes_of(url, done)
        since, begun, first = used(process), time.monotonic(), done
        while done < first + passes:
            fill(servers, partitions[::10], 1)
            # One scrape for each pass: the exporter is asked when the pass is due.
            time.sleep(max(0.0, begun + (done - first + 1) * interval - time.monotonic()))
            done, text = passes_of(url, done)
        cpu, elapsed = used(process) - since, time.monotonic() - begun
        rss = process.memory_info().rss
    each = cpu / (done - first)
    print(f"{int(done - first)} passes in {elapsed:.1f} s, {cpu:.2f} s of CPU time: {each * 1000:.0f} ms each")
    print(f"duration of a pass: {value(text, 'headrace_exporter_pass_duration_seconds'):.2f} s")
    print(f"at one pass every 15 s: {each / 15:.1%} of a core")
    print(f"{rss / 1e6:.0f} MB of memory, {len(text) / 1e6:.1f} MB and {text.count(chr(10)):,} lines for each scrape")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--partitions", type=int, default=10_000)
    options.add_argument("--groups", type=int, default=500)
    options.add_argument("--interval", type=float, default=15.0, help="seconds between passes")
    options.add_argument("--passes", type=int, default=8)
    options.add_argument("--warm-up", type=int, default=2, help="passes before the measurement")
    options.add_argument("--data", help="a directory that keeps the broker's data for the next run")
    given = options.parse_args()
    topics = topics_of(given.partitions)
    partitions = [TopicPartition(name, number) for name, size in topics.items() for number in range(size)]
    with LocalBroker(properties=_BROKER, heap="2g", start_timeout=300, data_dir=given.data) as broker:
        servers, begun = broker.bootstrap_servers, time.monotonic()
        asyncio.run(make_topics(servers, topics))
        fill(servers, partitions, RECORDS)
        asyncio.run(make_groups(servers, partitions, given.groups))
        print(
            f"{len(partitions):,} partitions, {given.groups} groups, made in {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        measure(servers, partitions, given.interval, given.passes, given.warm_up)


if __name__ == "__main__":
    main()
