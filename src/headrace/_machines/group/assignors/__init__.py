"""The client-side assignors of the classic group protocol, and how one is chosen."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ...._arguments import short_repr, text_of
from ....errors import ConfigError
from .base import Assignor, GroupMember, partitions_of
from .cooperative_sticky import CooperativeStickyAssignor
from .range import RangeAssignor
from .roundrobin import RoundRobinAssignor
from .sticky import StickyAssignor

__all__ = [
    "Assignor",
    "CooperativeStickyAssignor",
    "GroupMember",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "assignors_of",
    "is_cooperative",
    "is_own",
    "partitions_of",
]

_OWN: tuple[type[Assignor], ...] = (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
_JAVA = "org.apache.kafka.clients.consumer."
_KNOWN: dict[str, type[Assignor]] = {
    **{kind.name: kind for kind in _OWN},
    **{_JAVA + kind.__name__: kind for kind in _OWN},
}


def assignors_of(choice: str | Sequence[str | Assignor | type[Assignor]]) -> tuple[Assignor, ...]:
    """The configured assignors, in order of preference: by name, by Java's class name, as objects or classes.

    Raises ConfigError for an unknown name, an object that is no assignor, an empty list, or two of one name.
    """
    items = [name.strip() for name in choice.split(",")] if isinstance(choice, str) else choice
    found = tuple(_assignor(item) for item in items)
    if not found:
        raise ConfigError("partition.assignment.strategy needs at least one assignor")
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"partition.assignment.strategy has two assignors of the name {name!r}")
    return found


def is_cooperative(assignors: Iterable[Assignor]) -> bool:
    """Whether a member with these keeps its partitions during a rebalance: the group may choose any of them, so all
    must allow it."""
    return all(each.cooperative for each in assignors)


def is_own(assignor: Assignor) -> bool:
    """Whether it is one of this library, and not of the user."""
    return type(assignor) in _OWN


def _assignor(item: str | Assignor | type[Assignor]) -> Assignor:
    if isinstance(item, str):
        kind = _KNOWN.get(item)
        if kind is None:
            close = difflib.get_close_matches(item, _KNOWN, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "there are " + ", ".join(each.name for each in _OWN)
            raise ConfigError(f"unknown assignor {item!r} in partition.assignment.strategy: {hint}")
        return kind()
    assignor = item() if isinstance(item, type) else item
    missing = [name for name in ("name", "cooperative", "user_data", "assign") if not hasattr(assignor, name)]
    if missing:
        raise ConfigError(f"{item!r} is no assignor: it has no {' and no '.join(missing)}")
    try:
        is_named = bool(text_of("name", assignor.name))
    except (TypeError, ValueError):
        is_named = False
    if not is_named:
        raise ConfigError(f"{item!r} is no assignor: its name, {short_repr(assignor.name)}, cannot be one")
    return assignor
