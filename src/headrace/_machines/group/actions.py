"""The interface of a group member: what its machine decides, and who carries it out.

    machine  ->  Action      the membership task sends it or computes it, and reports `answered`, `failed` or `assigned`
    machine  ->  PollAction  the user's poll() carries it out, and reports `done`: revoke, lose or assign partitions
    user     ->  machine     `subscribe`; `poll_begins`, then `poll_action` and `done` until there is none, `poll_ends`
    clock    ->  machine     `tick(now)`, at `next_tick()` at the latest

- A machine is given events with the time. It never waits, sends or reads a clock. After every event the caller
  asks `tick(now)` for actions.
- The user owns partitions from the end of an `AssignPartitions` to the end of a `Revoke` or `Lose`. Only poll()
  carries those out, so listeners run on the user's thread, and the assignment never changes between two polls.
- Times are in seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..._protocol.messages import Api
from ...config.consumer import ConsumerConfig
from ...types import TopicPartition
from .assignors import GroupMember

Partitions = frozenset[TopicPartition]


# -- actions: for the membership task ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Send:
    """A request to the group's coordinator. `parks`: the coordinator delays its answer until other members have
    joined. No other request may wait behind it, so it needs a connection of its own."""

    api: Api
    fields: Mapping[str, Any]
    timeout: float
    parks: bool = False


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ComputeAssignment:
    """This member is the leader: assign the partitions of all subscribed topics to the members. Answered by
    `assigned`."""

    strategy: str
    members: Mapping[str, GroupMember]


Action = Send | ComputeAssignment


# -- poll actions: for poll() ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Revoke:
    """Revoke these in order: auto-commit, then call the listener. The group waits for it."""

    partitions: Partitions


@dataclasses.dataclass(frozen=True, slots=True)
class Lose:
    """Others may own these already: do not commit, only call the listener."""

    partitions: Partitions


@dataclasses.dataclass(frozen=True, slots=True)
class AssignPartitions:
    """Own `partitions`, of which `added` are new. The listener is called for every assignment, even if it adds
    nothing."""

    partitions: Partitions
    added: Partitions


PollAction = Revoke | Lose | AssignPartitions


# -- a member ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class MemberIdentity:
    """What a commit is sent with: the generation (or member epoch) and the ids. Outside of a group -1 and an empty
    id."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Subscription:
    """Topics by name, and a regular expression that the coordinator evaluates (KIP-848 only)."""

    topics: frozenset[str] = frozenset()
    server_pattern: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a member, in seconds."""

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
            # In a KIP-848 group the coordinator sets it.
            config.session_timeout_ms / 1000 if config.group_protocol == "classic" else 0.0,
            config.heartbeat_interval_ms / 1000,
            config.max_poll_interval_ms / 1000,
            config.request_timeout_ms / 1000,
            config.group_remote_assignor,
        )

    @property
    def longest_absence(self) -> float:
        """The longest time between two polls. A classic member has at least its session timeout, as in Java."""
        return max(self.session_timeout, self.max_poll_interval)
