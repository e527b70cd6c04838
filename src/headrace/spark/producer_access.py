"""All uses of a producer's internal parts in this package."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .._aio.produce.transaction_admin import TransactionAdmin
from .._machines.produce.open_transaction import OpenTransaction
from ..sync.producer import Producer

T = TypeVar("T")

_admins: weakref.WeakKeyDictionary[Producer, TransactionAdmin] = weakref.WeakKeyDictionary()


def hand_over(producer: Producer) -> OpenTransaction | None:
    """Leaves the producer's transaction open for another process to end. None if nothing was sent. All records must be
    delivered. The next begin() of this producer aborts the transaction if it is still open."""
    parts = producer._parts
    return parts.lifecycle.portal.run(parts.hand_over_call())


def has_stray_init(producer: Producer) -> bool:
    """Whether a lost InitProducerId of this producer may still arrive, and abort its transaction."""
    return producer._parts.has_stray_init


def ask_coordinators(producer: Producer, ask: Callable[[TransactionAdmin], Coroutine[Any, Any, T]]) -> T:
    """Uses the producer's connections for requests about any transactions."""
    parts = producer._parts
    parts.guard.check()

    async def run() -> T:
        admin = _admins.get(producer)
        if admin is None:
            client = parts.lifecycle.start().client
            admin = _admins[producer] = TransactionAdmin(client, parts.config.default_api_timeout_ms / 1000)
        return await ask(admin)

    return parts.lifecycle.portal.run(run)
