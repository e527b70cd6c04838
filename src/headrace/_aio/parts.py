"""`ConsumerParts`: what a consumer consists of, and the internal interface to it.

`AsyncConsumer` and `Consumer` are facades over the same parts, and the Spark source uses some of them directly. Users
do not: everything here may change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from ..config.consumer import ConsumerConfig
from ..events import Event
from ..types import TopicPartition
from . import telemetry
from .assembly import make_buffer, make_commit_target
from .callbacks import Callbacks
from .clients import add
from .commit.committer import Committer
from .commit.tracker import CompletionTracker
from .committing import Commits, CompletedWork
from .fetch.buffer import FetchBuffer
from .group.rebalance import Rebalancer
from .lifecycle import Lifecycle
from .metrics import metrics_of
from .offset_queries import OffsetQueries
from .poll_loop import ObservedPollLoop, PollLoop
from .retried_calls import RetriedCalls
from .runtime import ConsumerRuntime
from .seeking import Seeking
from .shutdown import Shutdown
from .subscriptions import Subscriptions

if TYPE_CHECKING:  # new_run() imports what run() needs
    from .._machines.run.scheduler import Job
    from ..records import Record
    from .run.consumer_run import ConsumerRun
    from .run.options import Handler, RunSettings


class ConsumerParts:
    """No part refers to a consumer: see `Lifecycle`."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config
        self.buffer = buffer = make_buffer(config)
        self.completions = completions = CompletionTracker() if config.commit_mode == "done" else None
        target = make_commit_target(buffer)
        self.committer = committer = Committer(config, buffer, target, completions)
        self.group = group = _group_of(config, buffer, completions, committer)
        interval = config.statistics_interval_ms / 1000
        self.callbacks = callbacks = Callbacks(self.metrics, config.on_stats, interval, config.on_event)
        config.forget_functions()
        if group is not None:
            group.report = callbacks.report
        create_runtime = _runtime_creator(config, buffer, group, committer, callbacks.report)
        self.lifecycle = lifecycle = Lifecycle(buffer.poll_signal, create_runtime, callbacks=callbacks)
        self.guard = guard = lifecycle.guard
        calls = RetriedCalls(lifecycle, config.default_api_timeout_ms / 1000)
        self.positions = Seeking(guard, calls, buffer, completions)
        self.commits = Commits(lifecycle, calls, buffer, committer, self.positions)
        self.completed = CompletedWork(lifecycle, completions)
        self.queries = OffsetQueries(guard, calls, buffer)
        self.subscriptions = Subscriptions(guard, buffer, group, completions)
        self.shutdown = Shutdown(lifecycle, buffer, group, completions, committer, self.subscriptions)
        loop_parts = lifecycle, buffer, group, completions, committer, config.max_poll_records
        self.poll_loop = PollLoop(*loop_parts)
        self.telemetry: telemetry.ConsumerTelemetry | None = None
        if telemetry.installed is not None:
            self.telemetry = committer.telemetry = found = telemetry.installed.for_consumer(config, config.group_id)
            self.poll_loop = ObservedPollLoop(found, *loop_parts)
        self.name = add(self, "consumer")

    def metrics(self) -> dict[str, Any]:
        self.guard.check()
        return metrics_of(self.config, self.buffer, self.lifecycle.runtime, self.group)

    def new_run(self, handler: Handler, settings: RunSettings, launch: Callable[[Job[Record]], None]) -> ConsumerRun:
        from .run.consumer_run import ConsumerRun, RunParts
        from .run.traced_consumer_run import TracedConsumerRun

        parts = RunParts(
            self.config, self.guard, self.buffer, self.group, self.completions, self.metrics, self.callbacks.report
        )
        if self.telemetry is None:
            return ConsumerRun(parts, handler, settings, launch)
        return TracedConsumerRun(self.telemetry, parts, handler, settings, launch)


def _group_of(
    config: ConsumerConfig, buffer: FetchBuffer, completions: CompletionTracker | None, committer: Committer
) -> Rebalancer | None:
    if config.group_id is None:
        return None

    def forget(partitions: Collection[TopicPartition]) -> None:
        committer.give_up(partitions)
        if completions is not None:
            completions.forget(partitions)

    final_commit = committer.after_revoke if committer.target.has_final_commit else None
    return Rebalancer(config, buffer, committer.before_revoke, final_commit, forget)


def _runtime_creator(
    config: ConsumerConfig,
    buffer: FetchBuffer,
    group: Rebalancer | None,
    committer: Committer,
    report: Callable[[Event], None],
) -> Callable[[], ConsumerRuntime]:
    def create() -> ConsumerRuntime:
        runtime = ConsumerRuntime(config, buffer, group, report)
        committer.attach(runtime)
        return runtime

    return create
