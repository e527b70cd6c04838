"""The plan of a run: which clients there are, and which faults happen when. A seed always makes the same plan."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BROKERS = (1, 2, 3)
PLAIN, TX, TYPED = "plain", "tx", "typed"
"""Topics. The records of `typed` are JSON, those of `tx` belong to transactions."""
MOVING = ("retained", "compacted", "recreated", "unclean")
"""Topics that lose records, each with a consumer of that kind."""
CALM = 8.0
"""Seconds at the begin without faults, in which groups form."""
SPARK_TOPICS: Mapping[str, str] = {
    "spark_plain": PLAIN,
    "spark_lanes": PLAIN,
    "spark_member": PLAIN,
    "spark_share": PLAIN,
    "spark_typed": TYPED,
    "spark_sink": PLAIN,
    "spark_sink_once": TX,
}
SPARK_KINDS = tuple(SPARK_TOPICS)
RENEWAL = "renew_certificates"
COPIERS = ("exactly_once", "spark_sink", "spark_sink_once")
"""Kinds that write what they read to a topic of their own."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client process; its successors after a kill have the same name. The members of a group have one kind."""

    name: str
    kind: str
    topic: str

    @property
    def is_producer(self) -> bool:
        return self.kind in ("idempotent", "transactional", "librdkafka", "java", "moving_writer")

    @property
    def is_spark(self) -> bool:
        """Whether it is a driver of Spark: a Python process, a JVM and Python workers."""
        return self.kind in SPARK_KINDS


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


def spark_clients(seed: int, count: int) -> tuple[Client, ...]:
    """Some kinds of Spark queries, with what they need: a group's other member, or a producer of typed records."""
    found = []
    for kind in random.Random(f"spark {seed}").sample(SPARK_KINDS, count):
        found.append(Client(kind, kind, SPARK_TOPICS[kind]))
        if kind == "spark_member":
            found.append(Client("spark_peer", "spark_peer", PLAIN))
        elif kind == "spark_typed":
            found.append(Client("typed", "idempotent", TYPED))
    return tuple(found)


def moving_clients(seed: int) -> tuple[Client, ...]:
    """A topic that loses records, by retention, compaction or deletion, with its clients."""
    return clients_of(random.Random(f"moving {seed}").choice(MOVING[:-1]))


def clients_of(topic: str) -> tuple[Client, ...]:
    """The clients of a topic that loses records."""
    return Client(f"{topic}-writer", "moving_writer", topic), Client(topic, topic, topic)


_WEIGHTS: Mapping[str, int] = {
    "kill_client": 10,
    "pause_client": 4,
    "cut": 3,
    "halve": 3,
    "delay": 2,
    "jitter": 2,
    "flood": 1,
    "black_hole": 2,
    "kill_broker": 2,
    "pause_broker": 2,
    "restart_broker": 1,
    "rolling_restart": 1,
    "add_partitions": 1,
}
_LASTS: Mapping[str, tuple[float, float]] = {
    "kill_client": (0.1, 3.0),
    "kill_driver": (0.1, 5.0),
    "pause_client": (0.5, 14.0),  # some of them longer than a session
    "delay": (1.0, 8.0),
    "jitter": (1.0, 8.0),
    "black_hole": (1.0, 14.0),
    "kill_broker": (0.5, 6.0),
    "jump_clock": (6.0, 20.0),
    "full_disk": (2.0, 8.0),
    "unclean_election": (5.0, 8.0),
    "pause_broker": (0.5, 8.0),  # some of them longer than the session of a broker
}
KINDS = tuple(_WEIGHTS)
_SPARK_WEIGHTS: Mapping[str, int] = {"kill_driver": 3, "kill_worker": 4}
"""In plans with Spark queries. A driver is its Python process and its JVM; workers run the source and the tasks."""
SPARK_FAULTS = tuple(_SPARK_WEIGHTS)
EXTRAS: Mapping[str, Mapping[str, int]] = {
    "clocks": {"jump_clock": 3},
    "disks": {"full_disk": 2},
    "certificates": {RENEWAL: 2},
}
"""Faults that need a C compiler, the permission to mount file systems, or TLS between clients and proxies."""
_TOPIC_WEIGHTS: Mapping[str, Mapping[str, int]] = {
    "recreated": {"recreate_topic": 3},
    "unclean": {"unclean_election": 3},
}
"""By the kind of client whose topic they are for."""
_BROKER_FAULTS = ("kill_broker", "pause_broker", "restart_broker", "rolling_restart", "full_disk", "unclean_election")
_WITHOUT_CLOCK = ("java", "librdkafka")
_SPARK_STARTS = 80.0
"""Seconds that a driver gets for its start before it is hit."""
_AT_ONCE = 0.35
"""The chance that a fault begins at the same moment as the one before."""
_BROKER_REST = 40.0
"""Seconds that a broker fault gets for its restart before the next one: only one broker is down at a time."""
_RESTARTS: Mapping[str, int] = {"rolling_restart": len(BROKERS), "unclean_election": 2}
_REST: Mapping[str, float] = {"kill_driver": _SPARK_STARTS, "recreate_topic": 25.0}
"""Seconds after a fault in which its target is not hit again."""
_MOST_PARTITIONS_ADDED = 4
_PERIOD, _QUIET = 180.0, 60.0
"""Seconds: the end of each period has no faults. Some promises are for times in which all is well."""


def make_plan(
    seed: int, seconds: float, clients: Sequence[Client], pace: float = 2.5, extras: Sequence[str] = ()
) -> Plan:
    """A plan with a fault about every `pace` seconds, now and then several at a time. A pace of 0: no faults."""
    dice = random.Random(seed)
    faults: list[Fault] = []
    at, brokers_free, added = CALM, CALM, 0
    drivers = [client for client in clients if client.is_spark]
    busy = {client.name: _SPARK_STARTS for client in drivers}
    weights = {**_WEIGHTS, **(_SPARK_WEIGHTS if drivers else {})}
    for client in clients:
        weights |= _TOPIC_WEIGHTS.get(client.kind, {})
    for extra in extras:
        weights |= EXTRAS[extra]
    while pace and at < seconds:
        kind = dice.choices(list(weights), list(weights.values()))[0]
        lasts = round(dice.uniform(*_LASTS.get(kind, (0.0, 0.0))), 1)
        target = _target(kind, dice, clients)
        is_possible = busy.get(target, 0.0) <= at
        if kind in _BROKER_FAULTS:
            is_possible = brokers_free <= at
        elif kind == "add_partitions":
            is_possible = added < _MOST_PARTITIONS_ADDED
        if is_possible:
            faults.append(Fault(round(at, 1), kind, target, lasts))
            busy[target] = at + lasts + _REST.get(kind, 1.0)
            if kind in _BROKER_FAULTS:
                brokers_free = at + lasts + _BROKER_REST * _RESTARTS.get(kind, 1)
            added += kind == "add_partitions"
        if dice.random() >= _AT_ONCE:
            at += dice.expovariate(1 / pace)
            if at % _PERIOD > _PERIOD - _QUIET:
                at = (at // _PERIOD + 1) * _PERIOD
    return Plan(seed, seconds, tuple(clients), tuple(faults))


def _target(kind: str, dice: random.Random, clients: Sequence[Client]) -> str:
    if kind == "kill_client":
        return dice.choice([client for client in clients if not client.is_spark]).name
    if kind == "pause_client":
        return dice.choice(clients).name
    if kind == "jump_clock":
        return dice.choice([each for each in clients if not each.is_spark and each.kind not in _WITHOUT_CLOCK]).name
    if kind == "recreate_topic":
        return "recreated"
    if kind == "unclean_election":
        return "broker-pair"
    if kind == RENEWAL:
        return "proxy-all"
    if kind in SPARK_FAULTS:
        return dice.choice([client for client in clients if client.is_spark]).name
    if kind == "rolling_restart":
        return "broker-all"
    if kind == "add_partitions":
        return PLAIN
    place = "broker" if kind in _BROKER_FAULTS else "proxy"
    return f"{place}-{dice.choice(BROKERS)}"
