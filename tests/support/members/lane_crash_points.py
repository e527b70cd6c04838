"""Points at which a consumer with two lanes kills its process, for `programs/two_lane_member.py`.

before the token            both logs were read and the token was created; nothing is committed
after the token             the token is committed; the live lane has handed out nothing
before both logs            a commit is about to start
between both logs           the second log has the backlog's progress, the first not yet the live lane's offset
after both logs             everything is committed; the user's call has not returned
a revoke is asked for       the group has requested a revoke; nothing has happened yet
before the listener         the revoked partitions are committed; the listener was not called yet
before the final commit     the listener was called; the first log still has the token
after the final commit      the first log has a plain offset; the group does not know about the revoke yet
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

from headrace._aio.commit.offset_requests import OffsetRequests
from headrace._aio.group.rebalance import Rebalancer
from headrace._aio.lanes.commit_logs import CommitLogs
from headrace._aio.lanes.tokens import LaneTokens
from headrace._machines.group.actions import Revoke
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX


def die(where: str) -> None:
    os.write(2, f"dies: {where}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # until the signal arrives


def place(point: str) -> None:
    """Make this process kill itself when it reaches the point."""
    POINTS[point](point)


def _always(*_: object) -> bool:
    return True


def _has_backlog(_: object, plan: Any) -> bool:
    return bool(plan.backlog)


def _is_second(log: OffsetRequests, *_: object) -> bool:
    return log.group.endswith(BACKLOG_SUFFIX)


def _is_revoke(_: object, poll_action: object, *__: object) -> bool:
    return isinstance(poll_action, Revoke)


def _before(owner: type, name: str, applies: Callable[..., bool], point: str) -> None:
    method = getattr(owner, name)

    @functools.wraps(method)
    def dying(*args: Any) -> Any:
        if applies(*args):
            die(point)
        return method(*args)

    setattr(owner, name, dying)


def _after(owner: type, name: str, applies: Callable[..., bool], point: str) -> None:
    method = getattr(owner, name)

    @functools.wraps(method)
    async def dying(*args: Any) -> Any:
        result = await method(*args)
        if applies(*args):
            die(point)
        return result

    setattr(owner, name, dying)


POINTS: dict[str, Callable[[str], None]] = {
    "before the token": functools.partial(_before, LaneTokens, "begin", _always),
    "after the token": functools.partial(_after, LaneTokens, "begin", _always),
    "before both logs": functools.partial(_before, CommitLogs, "commit", _has_backlog),
    "between both logs": functools.partial(_after, OffsetRequests, "commit", _is_second),
    "after both logs": functools.partial(_after, CommitLogs, "commit", _has_backlog),
    "a revoke is asked for": functools.partial(_before, Rebalancer, "_perform", _is_revoke),
    "before the listener": functools.partial(_before, Rebalancer, "_call_listener", _is_revoke),
    "before the final commit": functools.partial(_before, CommitLogs, "final_commit", _always),
    "after the final commit": functools.partial(_after, CommitLogs, "final_commit", _always),
}
