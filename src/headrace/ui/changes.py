"""Changes of groups that the page offers with --allow-changes: resets, which are shown first, and deletions.

A plan is kept here, and carried out by its number: the browser cannot send offsets that nobody has seen. It expires
after ten minutes. `AsyncAdmin` refuses it if the group has committed anything since, and refuses groups with members.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from .._aio.admin import AsyncAdmin
from .._machines.admin.deletion import deletion_warning
from ..admin import OffsetChange, ResetPlan
from ..errors import HeadraceError
from ..monitor.model import SHARE

log = logging.getLogger(__name__)

_KEPT_FOR = 600.0  # seconds
_MOST_PLANS = 50
_MOST_SHOWN = 500  # partitions of a plan in the browser
_WITHIN = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class _KeptPlan:
    plan: ResetPlan
    made: float


class GroupChanges:
    """One change at a time, for all browsers together."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._plans: dict[int, _KeptPlan] = {}
        self._last = 0
        self._turn = asyncio.Lock()

    async def plan(self, group: str, to: str, topic: str | None, backlog: str | None) -> dict[str, Any]:
        """What a reset would change, and the number of its plan. Raises HeadraceError."""
        async with self._admin() as admin:
            plan = await admin.plan_reset(group, to, topics=None if topic is None else [topic], backlog=backlog)
        now = time.monotonic()
        kept = [(number, it) for number, it in self._plans.items() if it.made > now - _KEPT_FOR]
        self._plans = dict(kept[-_MOST_PLANS + 1 :])
        self._last += 1
        self._plans[self._last] = _KeptPlan(plan, now)
        return {
            "plan": self._last,
            "needs_decision": plan.needs_decision,
            "partitions": len(plan.changes),
            "settable": _count_settable(plan),
            "changes": [_shown(it) for it in plan.changes[:_MOST_SHOWN]],
        }

    async def apply(self, number: int) -> int:
        """Carries out a plan, once. Returns how many partitions it has set. Raises HeadraceError."""
        kept = self._plans.pop(number, None)
        if kept is None or kept.made < time.monotonic() - _KEPT_FOR:
            raise HeadraceError("this plan was carried out already, or is older than ten minutes: preview it again")
        async with self._admin(". Some offsets may be set: check the group.") as admin:
            await admin.apply_reset(kept.plan)
        count = _count_settable(kept.plan)
        log.warning("the page has set the offsets of %d partitions of group %s", count, kept.plan.group)
        return count

    async def warning(self, group: str) -> str | None:
        """What the deletion of the group would break; None if nothing. Raises HeadraceError."""
        async with self._admin() as admin:
            return await _warning(admin, group)

    async def delete(self, group: str, *, is_warned: bool) -> tuple[str, ...]:
        """Returns the names of the deleted groups. `is_warned`: somebody has read the warning, if there is one. Raises
        HeadraceError, also for a warning that nobody has read."""
        async with self._admin() as admin:
            if not is_warned and (warning := await _warning(admin, group)) is not None:
                raise HeadraceError(f"{warning}. Confirm this warning to delete the group")
            deleted = await admin.delete_group(group)
        log.warning("the page has deleted group %s", group)
        return deleted

    @contextlib.asynccontextmanager
    async def _admin(self, if_cut_off: str = "") -> AsyncIterator[AsyncAdmin]:
        try:
            async with asyncio.timeout(_WITHIN), self._turn, AsyncAdmin(self._settings) as admin:
                yield admin
        except TimeoutError as error:
            # Those of the admin client name the request and the broker.
            is_named = isinstance(error, HeadraceError)
            reason = str(error) if is_named else f"the brokers did not answer within {_WITHIN:.0f} s"
            raise HeadraceError(reason + if_cut_off) from None


async def _warning(admin: AsyncAdmin, group: str) -> str | None:
    described = await admin.describe_group(group)
    if described is None or described.listing.kind == SHARE:  # share groups have no commits
        return None
    text = deletion_warning((await admin.committed(group)).values())
    return f"group {group} {text}" if text else None


def _count_settable(plan: ResetPlan) -> int:
    return sum(it.new is not None for it in plan.changes)


def _shown(change: OffsetChange) -> dict[str, Any]:
    return {
        "topic": change.partition.topic,
        "partition": change.partition.partition,
        "current": change.current,
        "new": change.new,
        "change": change.change,
        "note": change.note,
        "open": change.open_records,
    }
