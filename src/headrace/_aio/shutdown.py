"""How a consumer ends: the last commits, leaving the group, ending the tasks. For `unsubscribe()` and `close()`.

`revoke_all` is the user's side of it (listeners are called there) and comes first; `unsubscribe` and `end_tasks` follow
on the consumer's thread.
"""

from __future__ import annotations

import asyncio
import time

from .commit.committer import Committer
from .commit.tracker import CompletionTracker
from .fetch.buffer import FetchBuffer
from .group.rebalance import Rebalancer
from .group.steps import Steps
from .lifecycle import CLOSE_TIMEOUT, LAST_TRY, Lifecycle
from .runtime import ConsumerRuntime
from .subscriptions import Subscriptions


class Shutdown:
    def __init__(
        self,
        lifecycle: Lifecycle[ConsumerRuntime],
        buffer: FetchBuffer,
        group: Rebalancer | None,
        completions: CompletionTracker | None,
        committer: Committer,
        subscriptions: Subscriptions,
    ) -> None:
        self._lifecycle = lifecycle
        self._buffer = buffer
        self._group = group
        self._completions = completions
        self._committer = committer
        self._subscriptions = subscriptions
        self._retired: asyncio.Task[None] | None = None  # closes a runtime that nobody uses any more
        lifecycle.end_dropped = self.end_dropped

    def revoke_all(self, timeout: float = CLOSE_TIMEOUT) -> Steps:
        """On the user's thread, before `unsubscribe` and `end_tasks`."""
        if self._group is not None and self._lifecycle.runtime is not None:
            self._committer.shutdown_timeout = timeout
            try:
                yield from self._group.revoke_all()
            finally:
                self._committer.shutdown_timeout = None

    def forget(self) -> None:
        """unsubscribe() of a consumer that has no runtime."""
        if self._group is not None:
            with self._buffer.lock:
                self._group.member.leave("")
                self._group.unsubscribed()
        self._subscriptions.replace_assignment(())

    async def unsubscribe(self) -> None:
        """Ends all tasks until something is subscribed or assigned again. On the consumer's thread."""
        runtime = self._lifecycle.runtime
        if runtime is None:  # a listener that was called by `revoke_all` has unsubscribed or closed the consumer
            return
        await self._committer.commit_outstanding(runtime, CLOSE_TIMEOUT)
        await self._committer.final_commit(runtime, CLOSE_TIMEOUT)
        if self._subscriptions.is_subscribed:
            await self._leave("the consumer unsubscribed", CLOSE_TIMEOUT)
        self._subscriptions.replace_assignment(())
        self._detach_runtime()
        # An interrupt of the caller (Ctrl-C) cancels this. The next call creates another runtime, so this one has to
        # end in any case.
        self._retired = runtime.loop.create_task(runtime.close(), name="close")
        await asyncio.shield(self._retired)

    async def end_tasks(self, deadline: float) -> None:
        """close(), on the consumer's thread."""
        runtime = self._lifecycle.runtime
        if runtime is None:
            return
        try:
            await self._committer.commit_outstanding(runtime, max(LAST_TRY, deadline - time.monotonic()))
            await self._committer.final_commit(runtime, max(LAST_TRY, deadline - time.monotonic()))
            if self._subscriptions.is_subscribed:
                await self._leave("the consumer is being closed", max(LAST_TRY, deadline - time.monotonic()))
        finally:
            self._detach_runtime()
            await runtime.close()
            self._buffer.poll_signal.notify()

    async def end_dropped(self) -> None:
        """The consumer was dropped without close(), on its thread. Nobody knows whether the returned records were
        processed, so nothing is committed; a member leaves, so that the others need not wait for its session timeout.
        No listener is called: there is no thread of the user to call it on."""
        runtime = self._lifecycle.runtime
        if runtime is None:
            return
        try:
            if self._subscriptions.is_subscribed:
                await self._leave("the consumer was dropped without close()", CLOSE_TIMEOUT)
        finally:
            self._detach_runtime()
            await runtime.close()

    def _detach_runtime(self) -> None:
        """From here on only the caller, who closes it, uses the runtime."""
        self._committer.detach()
        self._lifecycle.detach_runtime()

    async def _leave(self, reason: str, timeout: float) -> None:
        group, runtime = self._group, self._lifecycle.runtime
        assert group is not None
        with self._buffer.lock:
            leave_request = group.member.leave(reason)
            group.unsubscribed()
        if leave_request is not None and runtime is not None and runtime.membership_task is not None:
            await runtime.membership_task.leave(leave_request, timeout)

    def take_back_unfinished(self) -> None:
        """The user's code raised inside of a with statement: the records of the last poll, or the last record of an
        iteration, were not finished, and close() must not commit them. With commit.mode=done the user has said which
        records are finished."""
        if self._completions is None and not self._lifecycle.guard.is_forked:
            self._buffer.take_back()
