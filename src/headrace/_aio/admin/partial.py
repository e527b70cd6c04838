"""Requests about many partitions: retries those that may still succeed, and reports every one that does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from ..._protocol.codes import printable
from ...errors import AuthorizationError, HeadraceError, KafkaError, PartialFailureError, ProtocolError
from ...types import TopicPartition
from .client import AdminClient

K = TypeVar("K", TopicPartition, str)

_NAMED = 10  # the number of partitions that an error names


async def for_each(
    client: AdminClient,
    doing: str,
    timeout: float | None,
    keys: Collection[K],
    send: Callable[[Collection[K]], Awaitable[Mapping[K, HeadraceError | None]]],
) -> None:
    """Calls `send` for all keys, and again for those with a retriable error. Raises an error that has all of them."""
    left = dict.fromkeys(keys)
    failed: dict[K, HeadraceError] = {}

    async def attempt() -> None:
        again: HeadraceError | None = None
        answers = await send(list(left))
        for key in list(left):
            error = answers.get(key, ProtocolError(f"{doing}: the response does not contain {key}"))
            if error is not None and error.retriable:
                again = error
                continue
            del left[key]
            if error is not None:
                failed[key] = error
        if again is not None:
            raise again

    try:
        await client.retried(doing, timeout, attempt)
    except HeadraceError as error:
        if len(left) == len(keys):
            raise
        failed.update(dict.fromkeys(left, error))
    if failed:
        raise _failure(doing, failed, frozenset(keys) - failed.keys())


def _failure(doing: str, failed: Mapping[K, HeadraceError], done: frozenset[K]) -> HeadraceError:
    """The error itself if nothing was done for a single reason."""
    errors = dict(sorted(failed.items()))
    first = next(iter(errors.values()))
    codes = {error.code if isinstance(error, KafkaError) else str(error) for error in errors.values()}
    if not done and len(codes) == 1:
        if isinstance(first, AuthorizationError):
            first.topics = frozenset(key if isinstance(key, str) else key.topic for key in errors)
        return first
    named = [f"{key} ({_reason(doing, key, error)})" for key, error in list(errors.items())[:_NAMED]]
    more = f" and {len(errors) - _NAMED} more" if len(errors) > _NAMED else ""
    count = f"{len(errors)} of {len(errors) + len(done)}" if done else f"all {len(errors)}"
    text = f"{doing}: {count} failed: {', '.join(named)}{more}{'. The others are done' if done else ''}"
    return PartialFailureError(printable(text, 4000), errors, done)


def _reason(doing: str, key: object, error: HeadraceError) -> str:
    return str(error).removeprefix(f"{doing}: ").removeprefix(f"{key}: ")
