"""What a group membership decides, whichever protocol it speaks: the words shared by its machines and their users.

    machine  ->  actions   what the background has to send or work out; each is answered by `answered` or `failed`
    machine  ->  duty      what has to happen inside of the user's poll(): give up, lose or take partitions
    user     ->  machine   `subscribe`, `poll_begins`, then `duty` and `done` until there is none, `poll_ends`
    clock    ->  machine   `tick(now)`, at the latest at `next_tick()`

- A machine takes an event with the time and never waits, sends or reads a clock. After every event the caller
  asks `tick(now)` for actions.
- Partitions are owned, in the eyes of the user, from the end of a `Take` to the end of a `Revoke` or `Lose`. Only
  poll() carries those out, so listeners run on the user's thread, and nothing changes hands behind its back.
- Times are seconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

from ..config import ConsumerConfig
from ..errors import HeadraceError
from ..protocol.messages import Api
from ..types import TopicPartition
from .assignors import GroupMember

Partitions = frozenset[TopicPartition]


# -- actions: for the background ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Send:
    """A request to the group's coordinator. `parks` is one that the coordinator answers only when others have come:
    nothing may wait behind it, so it needs a connection of its own."""

    api: Api
    fields: Mapping[str, Any]
    timeout: float
    parks: bool = False


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Assign:
    """This member leads: share the partitions of all their topics out. Answered by `assigned`."""

    strategy: str
    members: Mapping[str, GroupMember]


Action = Send | Assign


# -- duties: for poll() ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Revoke:
    """Give these up, in order: commit what auto-commit has to, tell the listener."""

    partitions: Partitions


@dataclasses.dataclass(frozen=True, slots=True)
class Lose:
    """These are gone, perhaps to others already: no commit, tell the listener."""

    partitions: Partitions


@dataclasses.dataclass(frozen=True, slots=True)
class Take:
    """Own `partitions`, of which `added` are new. The listener hears of every assignment, also of one that adds
    nothing."""

    partitions: Partitions
    added: Partitions


Duty = Revoke | Lose | Take


# -- what a member is ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Who commits: the generation (or member epoch) and the ids. Outside of a group -1 and an empty id."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Subscription:
    """Topics by name, and a regular expression that the coordinator resolves (KIP-848 only)."""

    topics: frozenset[str] = frozenset()
    server_pattern: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings a member needs, in seconds."""

    group_id: str
    instance_id: str | None = None
    rack: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    max_poll_interval: float = 300.0
    request_timeout: float = 30.0
    remote_assignor: str | None = None

    @classmethod
    def of(cls, config: ConsumerConfig) -> GroupSettings:
        assert config.group_id is not None
        return cls(
            config.group_id,
            config.group_instance_id,
            config.client_rack or None,
            # In a KIP-848 group it is the coordinator's affair.
            config.session_timeout_ms / 1000 if config.group_protocol == "classic" else 0.0,
            config.heartbeat_interval_ms / 1000,
            config.max_poll_interval_ms / 1000,
            config.request_timeout_ms / 1000,
            config.group_remote_assignor,
        )

    @property
    def longest_absence(self) -> float:
        """How long a member may stay away from poll(). A classic member has at least its session timeout, as Java's."""
        return max(self.session_timeout, self.max_poll_interval)


@dataclasses.dataclass(slots=True)
class PollClock:
    """How long the user has been away from poll() (KIP-62). Inside of it, no time passes."""

    limit: float
    _left_at: float | None = None

    def begins(self) -> None:
        self._left_at = None

    def ends(self, now: float) -> None:
        self._left_at = now

    @property
    def deadline(self) -> float:
        return math.inf if self._left_at is None else self._left_at + self.limit


class Member(Protocol):
    """A machine of one group protocol. Guarded by whoever owns it."""

    owned: Partitions
    """What the user owns."""
    failure: HeadraceError | None
    """What ended the membership, until the next `subscribe`. Polls raise it, again and again."""
    complaint: HeadraceError | None
    """What the next poll raises, unless the same was raised just now. The membership goes on."""

    # from the user
    def subscribe(self, subscription: Subscription) -> None: ...
    def poll_begins(self) -> None: ...
    def duty(self, held: Partitions = frozenset()) -> Duty | None: ...
    def done(self, duty: Duty) -> None: ...
    def poll_ends(self, now: float) -> None: ...
    def rejoin(self, reason: str) -> None: ...
    def parting(self) -> Duty | None: ...
    def leave(self, reason: str) -> Send | None: ...

    # from the background
    def tick(self, now: float) -> list[Action]: ...
    def next_tick(self) -> float: ...
    def answered(self, action: Send, body: Any, now: float) -> None: ...
    def failed(self, action: Action, error: HeadraceError, now: float) -> None: ...
    def commit_refused(self, code: int, sent: Identity) -> None: ...

    # questions
    @property
    def unwanted(self) -> Partitions: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def is_expired(self) -> bool: ...
