"""The versions that streams follow, and the documents that are made once for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace import TopicPartition
from headrace.monitor.history import History
from headrace.monitor.model import ClusterView, GroupView, PartitionView, TopicView, WatchStatus
from headrace.ui import feed as feed_module
from headrace.ui.feed import Feed, ViewName


class Passes:
    """A watcher whose passes end when the test says so."""

    def __init__(self) -> None:
        self.status = WatchStatus(None)
        self.history = History()
        self._ended = asyncio.Event()

    async def wait(self, passes: int, timeout: float) -> WatchStatus:
        while self.status.passes + self.status.failures <= passes:
            self._ended.clear()
            await self._ended.wait()
        return self.status

    def end(self, *groups: str) -> None:
        part = PartitionView(TopicPartition("orders", 0), next=1, begin=0, end=3, lag=2)
        found = tuple(GroupView(name, "classic", "Stable", partitions=(part,)) for name in groups)
        self.end_with(ClusterView(1000.0, 0.1, "c", (), {"orders": TopicView("orders", ())}, found))

    def end_with(self, view: ClusterView) -> None:
        self.history.add(view)
        self.status = WatchStatus(view, passes=self.status.passes + 1)
        self._ended.set()


def run(test: Callable[[Passes, Feed], Awaitable[None]]) -> None:
    async def main() -> None:
        passes = Passes()
        async with asyncio.timeout(20), Feed(passes, 1.0) as feed:
            await test(passes, feed)

    asyncio.run(main())


def test_a_stream_sees_the_present_each_pass_and_the_last_state() -> None:
    async def test(passes: Passes, feed: Feed) -> None:
        versions = feed.versions()
        assert await anext(versions) is True
        passes.end("billing")
        assert await anext(versions) is True
        feed.close()
        assert await anext(versions) is True  # what was published just before the end
        assert [it async for it in versions] == []

    run(test)


def test_a_stream_without_news_shows_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_CHECK_EVERY", 0.05)

    async def test(passes: Passes, feed: Feed) -> None:
        versions = feed.versions()
        assert [await anext(versions) for _ in range(3)] == [True, False, False]
        await versions.aclose()

    run(test)


def test_a_document_is_made_once_for_each_pass() -> None:
    async def test(passes: Passes, feed: Feed) -> None:
        versions = feed.versions()
        await anext(versions)
        passes.end("billing")
        await anext(versions)
        first = feed.document(ViewName("groups"))
        assert first is feed.document(ViewName("groups"))
        assert first is not None
        assert list(first.rows) == ["group:billing"]
        passes.end("billing", "audit")
        await anext(versions)
        assert len((feed.document(ViewName("groups")) or first).rows) == 2
        await versions.aclose()

    run(test)


def test_a_checkpoint_with_the_name_of_a_group_has_its_own_history() -> None:
    async def test(passes: Passes, feed: Feed) -> None:
        versions = feed.versions()
        await anext(versions)
        for at in (1000.0, 1010.0):
            groups = [
                GroupView("billing", kind, "", partitions=(PartitionView(TopicPartition("orders", 0), lag=lag),))
                for kind, lag in (("classic", 50), ("spark", 7))
            ]
            passes.end_with(ClusterView(at, 0.1, "c", (), {}, tuple(groups)))
            await anext(versions)
        for name, lag in ((ViewName("group", "billing"), 50), (ViewName("group", "billing", is_checkpoint=True), 7)):
            document = feed.document(name)
            assert document is not None
            assert document.head["lag"] == lag
            assert {it[1] for it in document.head["history"].pairs} == {lag}
        await versions.aclose()

    run(test)


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        (ViewName("group", "billing"), True),
        (ViewName("group", "billing", is_checkpoint=True), False),
        (ViewName("group", "other"), False),
        (ViewName("topic", "orders"), True),
        (ViewName("topic", "other"), False),
        (ViewName("activity"), False),
    ],
)
def test_what_is_not_in_the_cluster_has_no_document(name: ViewName, is_there: bool) -> None:
    async def test(passes: Passes, feed: Feed) -> None:
        assert (feed.document(name) is not None) is (name.kind != "activity")  # nothing is known yet
        versions = feed.versions()
        await anext(versions)
        passes.end("billing")
        await anext(versions)
        assert (feed.document(name) is not None) is is_there
        await versions.aclose()

    run(test)
