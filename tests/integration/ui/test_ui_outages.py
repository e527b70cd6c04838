"""The page while a broker is away: unknown is not zero, and it says what is missing since when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Consumer, LocalBroker, TopicPartition
from headrace.ui.server import BackgroundPage, PageOptions
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.browser import PICTURES, Browser, chromium


@pytest.fixture
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        browser.resize(1280, 900)
        yield browser
        assert browser.complaints() == []


def test_a_lag_without_a_leader_keeps_its_last_value_and_names_the_broker(
    browser: Browser, whole_cluster: LocalBroker, cluster_admin: Admin
) -> None:
    servers, group = whole_cluster.bootstrap_servers, unique("away")
    topic = cluster_admin.create("away", replicas=[[1], [3]])
    write(servers, topic, [*numbered(200), *numbered(100, 1)])
    with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 0): 50, TopicPartition(topic, 1): 40})
    options = PageOptions({"bootstrap.servers": servers, "request.timeout.ms": 2000}, port=0, interval=0.5)
    with BackgroundPage(options) as page:
        browser.open(f"{page.url}group?name={group}")
        browser.wait("the lag", "return document.querySelector('dl dd').innerText === '210'")
        whole_cluster.stop_broker(3)
        browser.wait_text("without a leader: broker 3 (127.0.0.1:", ".reasons")
        row = f"tbody tr[data-id='{topic}-1']"
        browser.wait_text("as of ", row)
        assert "60" in browser.texts(row)[0]
        tiles = browser.texts(".tiles > div")
        assert tiles[0].split("\n")[:2] == ["Lag", "≥\u00a0210"]
        assert next(it for it in tiles if it.startswith("Caught up in")).split("\n") == ["Caught up in", "–", "unknown"]
        assert "broker 3 (127.0.0.1:" in browser.texts("#banner")[0]
        browser.screenshot(PICTURES / "outage-group.png")
        browser.open(f"{page.url}groups")
        browser.wait_text("≥\u00a0210", f"tbody tr[data-id='group:{group}']")
        assert browser.texts(".brokers li")[0].startswith("3")
        assert "away" in browser.texts(".brokers li")[0]
        browser.screenshot(PICTURES / "outage-groups.png")
        whole_cluster.restart(3)
        browser.wait(
            "it is current",
            "const row = document.querySelector(arguments[0]).innerText;"
            "return !document.querySelector('.old') && /\\b210\\b/.test(row)",
            f"tbody tr[data-id='group:{group}']",
        )
        browser.wait("all brokers answer", "return !document.querySelector('.brokers [data-level=\"3\"]')")
