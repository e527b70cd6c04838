"""Makes a failing plan smaller as long as it still fails: fewer faults, fewer clients, shorter."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from .plan import CALM, Plan

T = TypeVar("T")
Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, within: float = float("inf")) -> Plan:
    """The smallest failing plan that was found within this time, in seconds. `fails` runs a plan."""
    deadline = time.monotonic() + within

    def still_fails(candidate: Plan) -> bool:
        return time.monotonic() < deadline and fails(candidate)

    while time.monotonic() < deadline:
        before = plan
        plan = _shorter(plan, still_fails)
        plan = _fewer_clients(plan, still_fails)
        plan = _fewer_faults(plan, still_fails)
        if plan == before:
            break
    return plan


def _fewer_faults(plan: Plan, fails: Fails) -> Plan:
    kept = reduce_items(plan.faults, lambda faults: fails(dataclasses.replace(plan, faults=tuple(faults))))
    return dataclasses.replace(plan, faults=tuple(kept))


def reduce_items(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Delta debugging (ddmin): drop ever smaller parts of the items while the rest still fails."""
    parts = 2
    while items:
        for kept in _without_parts(items, min(parts, len(items))):
            if fails(kept):
                items, parts = kept, max(2, parts - 1)
                break
        else:
            if parts >= len(items):
                break
            parts *= 2
    return items


def _without_parts(items: Sequence[T], parts: int) -> Iterator[Sequence[T]]:
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    for start, end in pairwise(bounds):
        yield [*items[:start], *items[end:]]


def _shorter(plan: Plan, fails: Fails) -> Plan:
    """Drop the last half of the time, again and again."""
    while plan.seconds > 2 * CALM:
        seconds = plan.seconds / 2
        faults = tuple(fault for fault in plan.faults if fault.at < seconds)
        shorter = dataclasses.replace(plan, seconds=seconds, faults=faults)
        if not fails(shorter):
            break
        plan = shorter
    return plan


def _fewer_clients(plan: Plan, fails: Fails) -> Plan:
    """Drop groups and producers, each with its faults. A topic without a producer would have nothing to check."""
    for kind in sorted({client.kind for client in plan.clients}):
        clients = tuple(client for client in plan.clients if client.kind != kind)
        names = {client.name for client in plan.clients} - {client.name for client in clients}
        faults = tuple(fault for fault in plan.faults if fault.target not in names)
        fewer = dataclasses.replace(plan, clients=clients, faults=faults)
        if any(client.is_producer for client in clients) and fails(fewer):
            plan = fewer
    return plan
