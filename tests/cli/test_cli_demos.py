"""The demos in their shortest form: the whole run, its table and its chart."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from headrace import TopicPartition
from headrace.cli import demo, demo_charts, demo_crash, demo_rebalance
from support.harness.browser import has_browser
from support.harness.page_watcher import watched_page
from support.harness.shell import headrace

PICTURES = Path(__file__).parents[2] / "build" / "ui"
PNG = b"\x89PNG\r\n\x1a\n"


pytestmark = pytest.mark.timeout(300)


@pytest.mark.soak  # it kills processes after they have committed, which takes time
def test_demo_crash_compares_and_draws_two_restarts(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"_READ_FOR": 3.0, "_SESSION": 1.0, "_DEAD_FOR": 1.5, "_AFTER": 0.5}.items():
        monkeypatch.setattr(demo_crash, name, seconds)
    picture = tmp_path / "crash.png"
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(watched_page(PICTURES / "demo.png")) if has_browser() else None
        shown = () if page is None else ("--ui", "--ui-port", str(page.port))
        done = headrace("demo", "crash", "-b", servers, "--backlog", "20000", "--png", str(picture), *shown)
    assert done.code == 0, done.err
    if page is not None:
        assert (page.has_ended, page.complaints) == (True, [])
        assert any("both consumers are restarted and read their backlog" in text for text in page.texts)
        assert "finished" in page.last
        assert "s behind" in page.last
    head, _, one, two, last = done.text.splitlines()
    assert re.fullmatch(r"killed, and restarted after \d+ s with a backlog of 20,000 records:", head)
    assert re.fullmatch(r"one lane +\d+\.\d\d s +\d+\.\d s", one)
    assert re.fullmatch(r"two lanes \(KIP-333\) +\d+\.\d\d s +\d+\.\d s", two)
    first_live, backlog_done = (float(two.split()[at]) for at in (-4, -2))
    assert first_live < backlog_done
    assert last == f"picture: {picture}"
    assert picture.read_bytes().startswith(PNG)
    assert "both consumers are killed; a backlog of 20,000 records is written\n" in done.err


@pytest.mark.parametrize("name", ["crash", "rebalance"])
def test_a_demo_that_cannot_work_says_so_at_the_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = headrace("demo", name, "-b", "127.0.0.1:1", "--png", str(tmp_path / "none" / "x.png"))
    assert (nowhere.code, nowhere.out) == (2, b"")
    assert f"{tmp_path / 'none'} is not a writable directory" in nowhere.err
    monkeypatch.setattr(demo, "_FIND_WITHIN", 0.5)
    nobody = headrace("demo", name, "-b", "127.0.0.1:1", "--png", str(tmp_path / "x.png"))
    assert (nobody.code, nobody.out) == (1, b"")
    assert "127.0.0.1:1" in nobody.err
    assert nobody.err.endswith("Is the broker running, and -b right?\n")


def test_demo_rebalance_compares_and_draws_two_members(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"BEFORE": 1.0, "WORK": 0.8, "AFTER": 0.2, "_SETTLE": 0.3, "_DEADLINE": 60.0}.items():
        monkeypatch.setattr(demo_rebalance, name, seconds)
    picture = tmp_path / "rebalance.png"
    for left in (2, 1, 0):
        done = headrace("demo", "rebalance", "-b", servers, "--png", str(picture))
        shares = [int(share) for share in re.findall(r"(\d+)%$", done.text, re.MULTILINE)]
        # A broker that pauses for a second spoils the measurement.
        if (len(shares) == 2 and shares[0] < shares[1]) or not left:
            break
    assert done.code == 0, done.err
    assert shares[0] < shares[1]
    head, _, blocking, delayed, last = done.text.splitlines()
    assert head == "records/s of the six partitions that the member keeps:"
    assert re.fullmatch(r"blocking listener +[\d,]+ +[\d,]+ +\d+%", blocking)
    assert re.fullmatch(r"delayed revoke \(KIP-983\) +[\d,]+ +[\d,]+ +\d+%", delayed)
    assert last == f"picture: {picture}"
    assert picture.read_bytes().startswith(PNG)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEFORE": 1.5, "WORK": 1.5, "AFTER": 0.2, "_SETTLE": 0.5, "_DEADLINE": 60.0}.items():
        monkeypatch.setattr(demo_rebalance, name, seconds)


@pytest.mark.parametrize("deferred", [False, True])
def test_rebalance_shows_the_rate_live_also_while_a_listener_keeps_the_member(
    servers: str, short: None, deferred: bool
) -> None:
    shown: list[tuple[str, float]] = []
    run = demo_rebalance.measure(servers, deferred, lambda text, rate: shown.append((text, rate)))
    during = [rate for text, rate in shown if "are revoked" in text]
    assert run.before > 0
    assert any(rate for text, rate in shown if text == "one member reads twelve partitions")
    assert len(during) >= 3
    if not deferred:
        assert during[-1] == 0, "the member reads nothing while the listener waits"


def test_the_live_rate_of_rebalance_is_that_of_six_partitions_before_and_during_the_revoke() -> None:
    """The rate of all twelve would seem to drop by half when six are revoked."""
    partitions = [TopicPartition("t", number) for number in range(demo_rebalance.PARTITIONS)]
    progress = demo_rebalance._Progress()
    progress.reads = [(99.9, tp, 10) for tp in partitions]
    before = progress.rate(100.0)
    progress.revoked = frozenset(partitions[demo_rebalance.KEPT :])
    assert before == progress.rate(100.0) == 10 * demo_rebalance.KEPT / demo_rebalance._LATELY


def test_the_picture_of_rebalance_has_a_legend() -> None:
    run = demo_rebalance.Measurement("run", [(at / 10, 6000.0) for at in range(-30, 50)], 0.5, 3.5)
    figure = demo_charts.rebalance_figure([run, run])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "six others are revoked, one of them after slow work",
        "records/s of the six partitions that the member keeps",
    ]
