"""The collector for prometheus_client, without a broker. Scrapes are read by prometheus_client's own parser."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace import AsyncConsumer, AsyncProducer, AsyncShareConsumer, Consumer, Producer, ShareConsumer
from headrace._measures import MEASURES
from headrace.prometheus import ClientCollector, register

KINDS: list[Any] = [Consumer, AsyncConsumer, ShareConsumer, AsyncShareConsumer, Producer, AsyncProducer]
ROLES = {Consumer: "consumer", ShareConsumer: "share_consumer", Producer: "producer"}


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make_one(kind: Any, **settings: Any) -> Any:
        settings |= {} if "Producer" in kind.__name__ else {"group_id": "billing"}
        made.append(kind(bootstrap_servers="127.0.0.1:1", **settings))
        return made[-1]

    yield make_one
    for client in made:
        close(client)


def close(client: Any) -> None:
    result = client.close()
    if result is not None:
        asyncio.run(result)


def scrape(registry: CollectorRegistry) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def clients_in(registry: CollectorRegistry) -> set[str]:
    found = scrape(registry)
    return {sample.labels["client"] for family in found.values() for sample in family.samples}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_client_is_collected_until_it_is_closed(make: Callable[..., Any], kind: Any) -> None:
    registry = CollectorRegistry()
    client = make(kind, client_id="mine")
    register(client, registry=registry)
    role = next(role for each, role in ROLES.items() if each.__name__ == kind.__name__.removeprefix("Async"))
    found = scrape(registry)
    assert {name.startswith(f"headrace_{role}_") for name in found} == {True}
    (sample,) = found[f"headrace_{role}_connections"].samples
    group = "" if role == "producer" else "billing"
    assert sample.labels == {"client": client._parts.name, "client_id": "mine", "group": group}
    assert sample.value == 0
    close(client)
    assert scrape(registry) == {}


def test_without_clients_all_of_the_process_are_collected_also_later_ones(make: Callable[..., Any]) -> None:
    registry = CollectorRegistry()
    first = make(Consumer)
    register(registry=registry)
    second, third = make(Producer), make(Consumer)
    names = {each._parts.name for each in (first, second, third)}
    assert names <= clients_in(registry)
    close(first)
    assert names & clients_in(registry) == {second._parts.name, third._parts.name}


def test_clients_with_the_same_settings_have_different_series(make: Callable[..., Any]) -> None:
    """Prometheus rejects a scrape with two samples of one series."""
    registry = CollectorRegistry()
    register(make(Consumer), make(Consumer), make(Producer), make(Producer), registry=registry)
    series = [
        (sample.name, *sorted(sample.labels.items()))
        for family in scrape(registry).values()
        for sample in family.samples
    ]
    assert len(series) == len(set(series)) > 20


def test_a_collector_keeps_no_client_alive() -> None:
    registry = CollectorRegistry()
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    register(consumer, registry=registry)
    assert clients_in(registry) == {consumer._parts.name}
    del consumer
    gc.collect()
    assert clients_in(registry) == set()


def test_a_collector_can_be_registered_once_and_unregistered() -> None:
    registry = CollectorRegistry()
    collector = register(registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        register(registry=registry)
    registry.unregister(collector)
    register(registry=registry)


def test_anything_that_is_no_client_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a consumer, share consumer or producer, not 'consumer'"):
        ClientCollector("consumer")  # type: ignore[arg-type]


def test_a_forked_process_does_not_report_the_clients_of_its_parent() -> None:
    program = """
        import os, sys
        from prometheus_client import CollectorRegistry, generate_latest
        from headrace import Consumer, Producer
        from headrace.prometheus import register
        registry, consumer = CollectorRegistry(), Consumer(bootstrap_servers="127.0.0.1:1")
        producer = Producer(bootstrap_servers="127.0.0.1:1")
        register(registry=registry)
        assert b"consumer-1" in generate_latest(registry)
        child = os.fork()
        if not child:
            os._exit(7 if generate_latest(registry) == b"" else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60).returncode == 7


@pytest.mark.parametrize("family", list(ClientCollector().describe()), ids=lambda family: family.name)
def test_names_follow_the_conventions_of_prometheus(family: Any) -> None:
    """The checks of `promtool check metrics`, as far as they concern these metrics."""
    assert re.fullmatch(r"headrace_(consumer|share_consumer|producer)_[a-z]+(_[a-z]+)*", family.name)
    assert family.documentation.endswith(".")
    assert family.type in ("counter", "gauge")
    assert not family.name.endswith(("_total", "_count", "_sum", "_info")), "reserved, or added by the client"
    for word in ("second", "byte", "record"):
        assert not re.search(rf"_{word}(_|$)", family.name), "units are plural"
    for word in ("ms", "milliseconds", "kilobytes", "counter", "gauge"):
        assert word not in family.name.split("_")


def test_all_names_are_different() -> None:
    names = [family.name for family in ClientCollector().describe()]
    assert len(names) == len(set(names)) == sum(map(len, MEASURES.values()))


def test_without_prometheus_client_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['prometheus_client'] = None; import headrace.prometheus"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "needs prometheus_client: pip install 'headrace[prometheus]'" in done.stderr
