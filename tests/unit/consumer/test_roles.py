"""Consumers and producers share the network, thread and guard code. Errors name the kind the user has."""

from __future__ import annotations

import asyncio
import os

import pytest

from headrace._aio.background import BackgroundErrors
from headrace._aio.call_guard import CallGuard
from headrace._aio.lifecycle import Lifecycle
from headrace._aio.network.connections import Connections
from headrace._aio.poll_signal import PollSignal
from headrace._aio.portal import Portal
from headrace._machines.error_pacing import ErrorPacing
from headrace.config.client import ClientConfig
from headrace.config.consumer import ConsumerConfig
from headrace.config.producer import ProducerConfig
from headrace.errors import ClosedError, ForkedError, HeadraceError

ROLES = pytest.mark.parametrize("role", ["consumer", "producer"])
NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


@ROLES
def test_a_guard_names_the_client_that_is_closed_or_forked(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = CallGuard(role)
    guard.close()
    with pytest.raises(ClosedError, match=f"^this {role} is closed$"):
        guard.check()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ForkedError, match=f"^this {role} belongs to process "):
        guard.check()


@ROLES
def test_a_portal_names_the_client_that_is_closed(role: str) -> None:
    portal = Portal("test", role)
    portal.shut()
    with pytest.raises(ClosedError, match=f"^this {role} is closed$"):
        portal.call(lambda: None)


@ROLES
def test_a_call_that_waits_while_its_client_is_closed_names_it(role: str) -> None:
    portal = Portal("test", role)

    async def close_and_wait() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)

    with pytest.raises(ClosedError, match=f"^this {role} was closed while the call was waiting$"):
        portal.run(close_and_wait)
    portal.close(10.0)


@pytest.mark.parametrize(
    "config", [ConsumerConfig.parse(NOBODY), ProducerConfig.parse(NOBODY)], ids=lambda each: each.role
)
def test_connections_name_the_client_that_is_closed(config: ClientConfig) -> None:
    async def main() -> None:
        connections = Connections(config, lambda error: None)
        await connections.close()
        with pytest.raises(ClosedError, match=f"^this {config.role} is closed$"):
            await connections.connect("127.0.0.1", 1)

    asyncio.run(main())


@ROLES
def test_the_error_of_a_crash_names_the_client(role: str) -> None:
    errors = BackgroundErrors(role)
    assert errors.crash_error() is None
    errors.crash = ValueError("a bug")
    with pytest.raises(
        HeadraceError, match=rf"^a background task of this {role} crashed: ValueError\('a bug'\)$"
    ) as caught:
        errors.raise_due(ErrorPacing(), 0.0, is_late=True)
    assert caught.value.__cause__ is errors.crash


class Producer:
    """The object a user holds."""


class Tasks:
    is_abandoned = False

    def abandon(self) -> None:
        self.is_abandoned = True


def test_the_warning_about_an_unclosed_client_says_what_is_lost() -> None:
    lifecycle = Lifecycle(PollSignal(), Tasks, role="producer", unclosed="unsent records are lost")
    owners = [Producer()]
    lifecycle.watch(owners[0])
    lifecycle.start()
    with pytest.warns(
        ResourceWarning,
        match=r"^unclosed Producer: unsent records are lost\. Call close\(\), or use the producer in a with",
    ):
        owners.clear()


def test_the_warning_about_an_unclosed_consumer_is_about_commits() -> None:
    lifecycle = Lifecycle(PollSignal(), Tasks)
    owners = [Producer()]
    lifecycle.watch(owners[0])
    lifecycle.start()
    with pytest.warns(
        ResourceWarning, match=r"it commits nothing more, and leaves its group.* use the consumer in a with"
    ):
        owners.clear()
