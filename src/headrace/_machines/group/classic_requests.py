"""Requests of a member of a classic group, and the errors after which it rejoins or retries. The coordinator parks
JoinGroup and SyncGroup until others have joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._protocol.group_data import MemberSubscription, write_subscription
from ..._protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from ...errors import HeadraceError, StateError
from .actions import GroupSettings, MemberIdentity, Partitions, Send
from .assignors import Assignor

FENCED = {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}
RETRIED = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.rebalance_in_progress,
}

_PROTOCOL_TYPE = "consumer"
_GRACE = 5.0  # after the rebalance timeout, when the coordinator answers at the latest
_LONGEST_REASON = 255


def with_user_data(
    subscription: MemberSubscription, assignors: Mapping[str, Assignor], previous: Partitions, generation: int
) -> dict[str, MemberSubscription]:
    """The same subscription for each strategy, with what its assignor adds about the last assignment."""
    topics = subscription.topics
    return {
        name: dataclasses.replace(subscription, user_data=user_data_of(assignor, topics, previous, generation))
        for name, assignor in assignors.items()
    }


def user_data_of(assignor: Assignor, *arguments: Any) -> bytes | None:
    """Raises StateError if a user's assignor raises, or returns something that cannot be sent."""
    try:
        data = assignor.user_data(*arguments)
        return None if data is None else memoryview(data).tobytes()
    except HeadraceError:
        raise
    except Exception as error:
        raise StateError(f"user_data() of the assignor {assignor.name} did not return bytes: {error!r}") from error


def join(settings: GroupSettings, member_id: str, subscriptions: Mapping[str, MemberSubscription], reason: str) -> Send:
    """`subscriptions` by strategy, in order of preference."""
    fields = {
        "group_id": settings.group_id,
        "session_timeout": round(settings.session_timeout * 1000),
        "rebalance_timeout": round(settings.max_poll_interval * 1000),
        "member_id": member_id,
        "group_instance_id": settings.instance_id,
        "protocol_type": _PROTOCOL_TYPE,
        "protocols": [{"name": name, "metadata": write_subscription(each)} for name, each in subscriptions.items()],
        "reason": reason[:_LONGEST_REASON],
    }
    return Send(JOIN_GROUP, fields, _rebalance_timeout(settings), parks=True)


def sync(settings: GroupSettings, identity: MemberIdentity, strategy: str, assignments: Mapping[str, bytes]) -> Send:
    """`assignments` are those of all members, from the leader."""
    fields = {
        **identity_fields(settings, identity),
        "protocol_type": _PROTOCOL_TYPE,
        "protocol_name": strategy,
        "assignments": [{"member_id": member, "assignment": each} for member, each in assignments.items()],
    }
    return Send(SYNC_GROUP, fields, _rebalance_timeout(settings), parks=True)


def heartbeat(settings: GroupSettings, identity: MemberIdentity) -> Send:
    return Send(HEARTBEAT, identity_fields(settings, identity), min(settings.request_timeout, settings.session_timeout))


def leave(settings: GroupSettings, member_id: str, reason: str) -> Send:
    member = {"member_id": member_id, "group_instance_id": None, "reason": reason[:_LONGEST_REASON]}
    fields = {"group_id": settings.group_id, "members": [member]}
    return Send(LEAVE_GROUP, fields, settings.request_timeout)


def identity_fields(settings: GroupSettings, identity: MemberIdentity) -> dict[str, Any]:
    return {
        "group_id": settings.group_id,
        "generation_id": identity.generation,
        "member_id": identity.member_id,
        "group_instance_id": identity.instance_id,
    }


def _rebalance_timeout(settings: GroupSettings) -> float:
    return max(settings.request_timeout, settings.max_poll_interval + _GRACE)
