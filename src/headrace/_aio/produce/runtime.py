"""The tasks of one producer on its event loop: created by the first record, ended by close()."""

from __future__ import annotations

import asyncio

from ...config.producer import ProducerConfig
from ...errors import AuthenticationError, ClosedError, HeadraceError
from ..background import watch
from ..network.client import Client
from .accumulator import Accumulator
from .sender import Sender


class ProducerRuntime:
    """Belongs to the loop on which it was created."""

    def __init__(self, config: ProducerConfig, accumulator: Accumulator) -> None:
        self.loop = asyncio.get_running_loop()
        self.client = Client(
            config, accumulator.cluster, accumulator.lock, self._on_metadata, self._watch, self._on_trouble
        )
        self.sender = Sender(config, self.client, accumulator, self._watch, self._crashed)
        self._accumulator = accumulator
        accumulator.unavailable = self.sender.queues.unavailable
        accumulator.queue_lengths = self.sender.queues.lengths
        accumulator.pending = self.sender.queues.pending
        accumulator.sent_directly = self.sender.direct.batches
        accumulator.silence = accumulator.waiting.silence = self.client.connections.silence
        accumulator.wake = self.sender.wake_from_any_thread

    def _watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        return watch(task, self._crashed)

    def _on_metadata(self) -> None:
        """Called by the client, with the lock held."""
        self._accumulator.metadata_changed()
        self.loop.call_soon(self.sender.metadata_changed)

    def _on_trouble(self, error: HeadraceError | None) -> None:
        """No broker accepts requests, and retries do not help. None: brokers accept requests again."""
        self._accumulator.obstacle = error
        if error is not None:
            self._accumulator.release_waiters(metadata=True)
            if isinstance(error, AuthenticationError) and error.is_final:
                self.sender.fail_all(error)

    def _crashed(self, error: BaseException) -> None:
        """A bug of this library. Undelivered records fail, and no more are accepted."""
        crash = HeadraceError(f"a background task of this producer crashed: {error!r}")
        crash.__cause__ = error
        self.sender.close()
        self._accumulator.fail_all(crash)

    # -- the end -----------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Ends without waiting. The end of the loop cancels the tasks."""
        self.sender.close()
        self.client.disconnect()
        self._accumulator.fail_all(ClosedError("this producer was closed before the record was delivered"))

    async def close(self) -> None:
        try:
            self.sender.close()
            await self.client.close()
        finally:
            self.abandon()
