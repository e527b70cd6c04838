"""The watcher: what remains when a pass fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.errors import AuthenticationError, HeadraceError, NetworkError
from headrace.monitor import watcher as module
from headrace.monitor.model import ClusterView, GroupKey, GroupView, PartitionView
from headrace.monitor.watcher import Watcher
from headrace.types import TopicPartition


def view(at: float) -> ClusterView:
    row = PartitionView(TopicPartition("t", 0), committed=0, next=0, begin=0, end=5, lag=5)
    return ClusterView(at, 0.1, "c", (), {}, (GroupView("g", "classic", "Empty", partitions=(row,)),))


class ScriptedCollector:
    """Each pass takes the next view or error; the last one is repeated."""

    def __init__(self, *passes: ClusterView | Exception) -> None:
        self.passes = list(passes)
        self.is_closed = False

    async def collect(self) -> ClusterView:
        await asyncio.sleep(0)
        found = self.passes.pop(0) if len(self.passes) > 1 else self.passes[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def close(self) -> None:
        self.is_closed = True


def watch(
    monkeypatch: pytest.MonkeyPatch,
    passes: list[ClusterView | Exception],
    work: Callable[[Watcher], Awaitable[None]],
    **options: Any,
) -> ScriptedCollector:
    collector = ScriptedCollector(*passes)
    monkeypatch.setattr(module, "Collector", lambda *args, **named: collector)

    async def run() -> None:
        async with asyncio.timeout(20), Watcher({}, interval=0.01, **options) as watcher:
            await work(watcher)

    asyncio.run(run())
    assert collector.is_closed
    return collector


def test_a_failed_pass_keeps_the_view_and_tells_since_when(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(watcher: Watcher) -> None:
        assert watcher.status.view is None
        first = await watcher.wait(0, 5)
        assert (first.view, first.error, first.passes) == (VIEW, None, 1)
        second = await watcher.wait(1, 5)
        assert (second.view, second.error, second.failures) == (VIEW, "away", 1)
        third = await watcher.wait(2, 5)
        assert (third.failing_since, third.failures) == (second.failing_since, 2)
        fourth = await watcher.wait(3, 5)
        assert (fourth.view, fourth.error, fourth.failing_since) == (LATER, None, None)
        assert (fourth.passes, fourth.failures) == (2, 2)

    VIEW, LATER = view(1), view(2)
    watch(monkeypatch, [VIEW, NetworkError("away"), NetworkError("still away"), LATER], work)
    assert [it.message for it in caplog.records if it.levelname == "WARNING"] == ["cannot read the cluster: away"]


def test_a_defect_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Watcher) -> None:
        assert (await watcher.wait(0, 5)).error == "KeyError: 'x'"
        assert (await watcher.wait(1, 5)).error is None

    watch(monkeypatch, [KeyError("x"), view(1)], work)


@pytest.mark.parametrize(
    ("error", "is_final"),
    [(AuthenticationError("wrong password", "authenticate"), True), (HeadraceError("other"), False)],
)
def test_a_rejected_login_is_final(monkeypatch: pytest.MonkeyPatch, error: Exception, is_final: bool) -> None:
    async def work(watcher: Watcher) -> None:
        assert (await watcher.wait(0, 5)).is_final == is_final

    watch(monkeypatch, [error], work)


def test_waiting_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Watcher) -> None:
        assert (await watcher.wait(10**6, 0.05)).passes < 10**6

    watch(monkeypatch, [view(1)], work)


def test_history_takes_the_passes_unless_only_views_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ClusterView] = []

    async def with_history(watcher: Watcher) -> None:
        await watcher.wait(1, 5)
        assert [point.lag for point in watcher.history.group(GroupKey(False, "g")).points][:2] == [5, 5]

    async def without(watcher: Watcher) -> None:
        await watcher.wait(0, 5)
        assert watcher.history.group(GroupKey(False, "g")).points == ()

    watch(monkeypatch, [view(1), view(2), view(3)], with_history)
    watch(monkeypatch, [view(1)], without, on_view=seen.append)
    assert seen
