"""Broker error codes as Python errors, and what peers wrote as text that can be shown."""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from ..errors import AuthorizationError, HeadraceError, KafkaError

NONE = ErrorCode.none

_DENIED = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.delegation_token_authorization_failed,
}

_LONGEST_MESSAGE = 1000


def legible(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """What a peer wrote (a name, an address, a remark), fit for errors and logs: on one line, without anything that a
    terminal would take for a command, and not too long. Of any script: names may be."""
    cut = text[:longest]
    shown = cut if cut.isprintable() else "".join(each if each.isprintable() else " " for each in cut)
    return shown if len(text) <= longest else shown + " …"


def code_name(code: int) -> str:
    """The code's name as Kafka writes it, or `UNKNOWN_ERROR_<n>` for one from a newer broker."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"UNKNOWN_ERROR_{int(code)}"


def is_retriable(code: int) -> bool:
    """Whether the same request may succeed later. A code that nobody here knows is taken as final."""
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False


def kafka_error(code: int, doing: str, detail: str | None = None, kind: type[KafkaError] = KafkaError) -> KafkaError:
    """The error to raise for a code. `doing` says what was asked of whom, `detail` what the broker added. Both may have
    words of peers in them: the message is made legible."""
    name = code_name(code)
    message = f"{doing}: {name} ({int(code)})"
    if detail:
        message += f": {detail}"
    if kind is KafkaError and code in _DENIED:
        kind = AuthorizationError
    return kind(int(code), name, is_retriable(code), legible(message))


def topics_denied(topics: Iterable[str]) -> AuthorizationError:
    """One error for all topics that may not be read."""
    names = sorted(topics)
    doing = f"Reading {'topic' if len(names) == 1 else 'topics'} {', '.join(names)}"
    detail = "an ACL must allow this client to Read and Describe"
    error = kafka_error(ErrorCode.topic_authorization_failed, doing, detail)
    assert isinstance(error, AuthorizationError)
    error.topics = frozenset(names)
    return error


def denies_topic(error: HeadraceError) -> bool:
    return isinstance(error, AuthorizationError) and error.code == ErrorCode.topic_authorization_failed
