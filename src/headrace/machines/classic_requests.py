"""What a member of a classic group sends. The coordinator parks JoinGroup and SyncGroup until others have come."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import HeadraceError, StateError
from ..protocol.group_data import MemberSubscription, write_subscription
from ..protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from .assignors import Assignor
from .membership import GroupSettings, Identity, Partitions, Send

_PROTOCOL_TYPE = "consumer"
_GRACE = 5.0  # the coordinator answers when the rebalance timeout is over; its answer takes a while, too
_LONGEST_REASON = 255


def with_user_data(
    subscription: MemberSubscription, assignors: Mapping[str, Assignor], previous: Partitions, generation: int
) -> dict[str, MemberSubscription]:
    """The same subscription for each strategy, with what its assignor wants to be told of the assignment before."""
    topics = subscription.topics
    return {
        name: dataclasses.replace(subscription, user_data=user_data_of(assignor, topics, previous, generation))
        for name, assignor in assignors.items()
    }


def user_data_of(assignor: Assignor, *told: Any) -> bytes | None:
    """Raises StateError if an assignor that a user wrote raises, or says what cannot be sent."""
    try:
        data = assignor.user_data(*told)
        return None if data is None else memoryview(data).tobytes()
    except HeadraceError:
        raise
    except Exception as error:
        raise StateError(f"user_data() of the assignor {assignor.name} gave no bytes: {error!r}") from error


def join_request(
    settings: GroupSettings, member_id: str, subscriptions: Mapping[str, MemberSubscription], reason: str
) -> Send:
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
    return Send(JOIN_GROUP, fields, _patience(settings), parks=True)


def sync_request(settings: GroupSettings, seat: Identity, strategy: str, assignments: Mapping[str, bytes]) -> Send:
    """`assignments` are those of all members, from the leader."""
    fields = {
        **who(settings, seat),
        "protocol_type": _PROTOCOL_TYPE,
        "protocol_name": strategy,
        "assignments": [{"member_id": member, "assignment": each} for member, each in assignments.items()],
    }
    return Send(SYNC_GROUP, fields, _patience(settings), parks=True)


def heartbeat_request(settings: GroupSettings, seat: Identity) -> Send:
    return Send(HEARTBEAT, who(settings, seat), min(settings.request_timeout, settings.session_timeout))


def leave_request(settings: GroupSettings, member_id: str, reason: str) -> Send:
    member = {"member_id": member_id, "group_instance_id": None, "reason": reason[:_LONGEST_REASON]}
    fields = {"group_id": settings.group_id, "members": [member]}
    return Send(LEAVE_GROUP, fields, settings.request_timeout)


def who(settings: GroupSettings, seat: Identity) -> dict[str, Any]:
    return {
        "group_id": settings.group_id,
        "generation_id": seat.generation,
        "member_id": seat.member_id,
        "group_instance_id": seat.instance_id,
    }


def _patience(settings: GroupSettings) -> float:
    return max(settings.request_timeout, settings.max_poll_interval + _GRACE)
