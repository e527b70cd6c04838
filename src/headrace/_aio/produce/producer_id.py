"""The producer id and epoch of a producer without transactions: InitProducerId, from any broker.

Without idempotence there is none, and batches are sent with -1. With it, the client raises the epoch itself when a
partition needs a new one, and requests another id only when the epochs are used up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..._chance import chance
from ..._machines.produce.idempotence import ProducerIdentity
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import INIT_PRODUCER_ID
from ...config.producer import ProducerConfig
from ...errors import HeadraceError, NetworkError
from ..network.client import Client

log = logging.getLogger(__name__)

_NONE = ProducerIdentity(-1, -1)
_LAST_EPOCH = 2**15 - 1
_NO_TIMEOUT = 2**31 - 1
_LAST_STABLE = 5  # version 6 is for two-phase commit


class ProducerIdSource:
    """Belongs to the producer's loop. `on_change` is called after a new id has arrived, `on_failure` when the brokers
    reject the request with a fatal error."""

    def __init__(
        self,
        config: ProducerConfig,
        client: Client[ProducerConfig],
        on_change: Callable[[], None],
        on_failure: Callable[[HeadraceError], None],
    ) -> None:
        self.is_idempotent = config.enable_idempotence
        self.current: ProducerIdentity | None = None if self.is_idempotent else _NONE
        self._client = client
        self._on_change = on_change
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Requests an id unless a request is in flight."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._init(), name="InitProducerId")

    def bump(self, used: ProducerIdentity | None) -> ProducerIdentity | None:
        """An identity that is newer than `used` for a partition. None if it must be requested first."""
        current = self.current
        if current is None or used is None or current != used:
            return current
        if current.epoch < _LAST_EPOCH:
            self.current = ProducerIdentity(current.producer_id, current.epoch + 1)
            return self.current
        self.current = None
        self.request()
        return None

    async def _init(self) -> None:
        failures = 0
        fields = {
            "transactional_id": None,
            "transaction_timeout": _NO_TIMEOUT,
            "producer_id": _NONE.producer_id,
            "producer_epoch": _NONE.epoch,
        }
        try:
            while True:
                try:
                    reply = await self._client.call(self._any_broker(), INIT_PRODUCER_ID, fields, highest=_LAST_STABLE)
                    if reply.body.error_code != NONE:
                        raise kafka_error(reply.body.error_code, "InitProducerId", _ADVICE)
                    break
                except HeadraceError as error:
                    if not error.retriable:
                        self._on_failure(error)
                        return
                    failures += 1
                    log.debug("InitProducerId failed (attempt %d): %s", failures, error)
                    await asyncio.sleep(self._client.retries.pause(failures))
        finally:
            self._task = None
        self.current = ProducerIdentity(reply.body.producer_id, reply.body.producer_epoch)
        self._on_change()

    def _any_broker(self) -> int:
        brokers = list(self._client.cluster.brokers)
        if not brokers:
            raise NetworkError("no broker is known yet")
        return chance.choice(brokers)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


_ADVICE = "with enable.idempotence=true this client needs the right IdempotentWrite, or Write on any topic"
