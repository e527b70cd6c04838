"""Converts broker error codes to Python errors, and text from peers to text that is safe to print."""

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


def printable(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Text from a peer (a name, an address, a message), made safe for errors and logs: on one line, without control
    characters that a terminal would interpret, and truncated if it is long. Letters of all scripts are kept."""
    cut = text[:longest]
    clean = cut if cut.isprintable() else "".join(each if each.isprintable() else " " for each in cut)
    return clean if len(text) <= longest else clean + " …"


def code_name(code: int) -> str:
    """The code's name in Kafka's spelling, or `UNKNOWN_ERROR_<n>` for a code of a newer broker."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"UNKNOWN_ERROR_{int(code)}"


def is_retriable(code: int) -> bool:
    """Whether the same request may succeed later. Unknown codes are not retriable."""
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False


def kafka_error(code: int, doing: str, detail: str | None = None, kind: type[KafkaError] = KafkaError) -> KafkaError:
    """The error to raise for a code. `doing` names the request and the broker, `detail` is the broker's message. Both
    may contain text from peers, so the message is passed through `printable`."""
    name = code_name(code)
    message = f"{doing}: {name} ({int(code)})"
    if detail:
        message += f": {detail}"
    if kind is KafkaError and code in _DENIED:
        kind = AuthorizationError
    return kind(int(code), name, is_retriable(code), printable(message))


def topics_denied(topics: Iterable[str]) -> AuthorizationError:
    """One error for all topics that an ACL denies."""
    names = sorted(topics)
    doing = f"cannot read {'topic' if len(names) == 1 else 'topics'} {', '.join(names)}"
    detail = "add an ACL that allows this client the operations Read and Describe"
    error = kafka_error(ErrorCode.topic_authorization_failed, doing, detail)
    assert isinstance(error, AuthorizationError)
    error.topics = frozenset(names)
    return error


def denies_topic(error: HeadraceError) -> bool:
    return isinstance(error, AuthorizationError) and error.code == ErrorCode.topic_authorization_failed
