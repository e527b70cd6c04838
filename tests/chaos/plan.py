"""The plan of a run: which clients there are, and which faults happen when. A seed always makes the same plan."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BROKERS = (1, 2, 3)
PLAIN, TX, COPIES = "plain", "tx", "copies"
CALM = 8.0
"""Seconds at the begin without faults, in which groups form."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client process; its successors after a kill have the same name. The members of a group have one kind."""

    name: str
    kind: str
    topic: str

    @property
    def is_producer(self) -> bool:
        return self.kind in ("idempotent", "transactional", "librdkafka", "java")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens `at` seconds after the start and is healed `lasts` seconds later."""

    at: float
    kind: str
    target: str
    """The name of a client, `broker-1`, `proxy-1`, or a topic."""
    lasts: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    seconds: float
    clients: tuple[Client, ...]
    faults: tuple[Fault, ...]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)


def plan_of(text: str) -> Plan:
    saved: dict[str, Any] = json.loads(text)
    clients = tuple(Client(**each) for each in saved["clients"])
    return Plan(saved["seed"], saved["seconds"], clients, tuple(Fault(**each) for each in saved["faults"]))


def all_clients() -> tuple[Client, ...]:
    """Every kind of client; two members of each group, so that partitions move."""
    producers = [("writer-1", "idempotent", PLAIN), ("writer-2", "idempotent", PLAIN), ("rd", "librdkafka", PLAIN)]
    producers += [("java", "java", PLAIN), ("tx-1", "transactional", TX), ("tx-2", "transactional", TX)]
    members = [("eager", PLAIN), ("cooperative", PLAIN), ("consumer", PLAIN), ("lanes", PLAIN), ("done", PLAIN)]
    members += [("share_implicit", PLAIN), ("share_explicit", PLAIN), ("exactly_once", TX)]
    found = [Client(*each) for each in producers] + [Client("assigned-1", "assigned", TX)]
    return tuple(found + [Client(f"{kind}-{n}", kind, topic) for kind, topic in members for n in (1, 2)])


def few_clients() -> tuple[Client, ...]:
    """For the short form: no second JVM, and groups of one member where nothing but its own end matters."""
    without = ("java", "writer-2", "tx-2", "cooperative-1", "cooperative-2", "share_implicit-2", "eager-2")
    return tuple(client for client in all_clients() if client.name not in without)


_WEIGHTS: Mapping[str, int] = {
    "kill_client": 6,
    "pause_client": 4,
    "cut": 3,
    "halve": 3,
    "delay": 2,
    "black_hole": 2,
    "kill_broker": 2,
    "pause_broker": 2,
    "restart_broker": 1,
    "rolling_restart": 1,
    "add_partitions": 1,
}
_LASTS: Mapping[str, tuple[float, float]] = {
    "kill_client": (0.1, 3.0),
    "pause_client": (0.5, 14.0),  # some of them longer than a session
    "delay": (1.0, 8.0),
    "black_hole": (1.0, 14.0),
    "kill_broker": (0.5, 6.0),
    "pause_broker": (0.5, 8.0),  # some of them longer than the session of a broker
}
KINDS = tuple(_WEIGHTS)
_AT_ONCE = 0.35
"""The chance that a fault begins at the same moment as the one before."""
_BROKER_REST = 12.0
"""Seconds that a broker fault gets for its restart before the next one: only one broker is down at a time."""
_MOST_PARTITIONS_ADDED = 4
_PERIOD, _QUIET = 180.0, 60.0
"""Seconds: the end of each period has no faults. Some promises are for times in which all is well."""


def make_plan(seed: int, seconds: float, clients: Sequence[Client], pace: float = 2.5) -> Plan:
    """A plan with a fault about every `pace` seconds, several at a time now and then."""
    dice = random.Random(seed)
    faults: list[Fault] = []
    at, brokers_free, added = CALM, CALM, 0
    busy: dict[str, float] = {}
    while at < seconds:
        kind = dice.choices(KINDS, list(_WEIGHTS.values()))[0]
        lasts = round(dice.uniform(*_LASTS.get(kind, (0.0, 0.0))), 1)
        target = _target(kind, dice, clients)
        is_possible = busy.get(target, 0.0) <= at
        if kind.endswith("_broker") or kind == "rolling_restart":
            is_possible = brokers_free <= at
        elif kind == "add_partitions":
            is_possible = added < _MOST_PARTITIONS_ADDED
        if is_possible:
            faults.append(Fault(round(at, 1), kind, target, lasts))
            busy[target] = at + lasts + 1.0
            if kind.endswith("_broker") or kind == "rolling_restart":
                brokers_free = at + lasts + _BROKER_REST * (len(BROKERS) if kind == "rolling_restart" else 1)
            added += kind == "add_partitions"
        if dice.random() >= _AT_ONCE:
            at += dice.expovariate(1 / pace)
            if at % _PERIOD > _PERIOD - _QUIET:
                at = (at // _PERIOD + 1) * _PERIOD
    return Plan(seed, seconds, tuple(clients), tuple(faults))


def _target(kind: str, dice: random.Random, clients: Sequence[Client]) -> str:
    if kind in ("kill_client", "pause_client"):
        return dice.choice(clients).name
    if kind == "rolling_restart":
        return "broker-all"
    if kind == "add_partitions":
        return PLAIN
    place = "broker" if kind.endswith("_broker") else "proxy"
    return f"{place}-{dice.choice(BROKERS)}"
