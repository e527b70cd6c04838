"""Wrong arguments of public methods, parameter by parameter.

`OF_CONSUMERS` and `OF_SHARE_CONSUMERS` have every public method, with every parameter. A test compares them with the
classes, so a new method or parameter needs its row.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from headrace import OffsetAndMetadata, RebalanceListener, Record, TopicPartition
from headrace.errors import StateError

TOPIC = "wrong-arguments"
TP = TopicPartition(TOPIC, 0)

# A wrong value and the error it raises. ConfigError is a ValueError.
Wrong = tuple[Any, type[Exception]]


@dataclasses.dataclass(frozen=True)
class Method:
    """`wrong` has the values to try, by parameter; `right` the other required arguments."""

    wrong: Mapping[str, Sequence[Wrong]] = dataclasses.field(default_factory=dict)
    right: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    without: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # the argument to omit when this parameter is given
    alone: bool = False  # call it on a consumer without a subscription

    def calls(self, function: Any) -> list[tuple[str, Any, tuple[Any, ...], dict[str, Any], type[Exception]]]:
        """Tuples of parameter name, wrong value, positional arguments, keyword arguments, expected error."""
        parameters = inspect.signature(function).parameters
        found = []
        for name, values in self.wrong.items():
            for value, error in values:
                given = {**self.right, name: value}
                given.pop(self.without.get(name, ""), None)
                keywords = {n: v for n, v in given.items() if parameters[n].kind is inspect.Parameter.KEYWORD_ONLY}
                positional = [n for n in parameters if n in given and n not in keywords]
                # Earlier parameters that are not given have their defaults.
                before = list(parameters)[: max((list(parameters).index(n) for n in positional), default=-1) + 1]
                args = tuple(given.get(n, parameters[n].default) for n in before)
                found.append((name, value, args, keywords, error))
        return found


def names_of(kind: type[Any]) -> dict[str, set[str]]:
    """The public methods of a class and their parameters."""
    return {
        name: set(inspect.signature(getattr(kind, name)).parameters) - {"self"}
        for name in dir(kind)
        if not name.startswith("_")
    }


async def coroutine(*args: Any) -> None: ...


class NotAListener:
    pass


SECONDS: list[Wrong] = [
    ("1", TypeError),
    (True, TypeError),
    (b"", TypeError),
    ([1], TypeError),
    (1j, TypeError),
    (Decimal(1), TypeError),
    (datetime.timedelta(seconds=1), TypeError),
    (math.nan, ValueError),
    (10**400, ValueError),
]
NEEDED_SECONDS: list[Wrong] = [*SECONDS, (None, TypeError)]
COUNTS: list[Wrong] = [("5", TypeError), (1.5, TypeError), (math.nan, TypeError), (True, TypeError), ([], TypeError)]
PARTITION: list[Wrong] = [
    (TOPIC, TypeError),
    ("ab", TypeError),
    (None, TypeError),
    (5, TypeError),
    ((TOPIC,), TypeError),
    ((TOPIC, 0, 0), TypeError),
    ({"topic": TOPIC, "partition": 0}, TypeError),
    ((TOPIC, -1), ValueError),
    ((TOPIC, 2**31), ValueError),
    ((TOPIC, 2**70), ValueError),
    ((TOPIC, True), ValueError),
    ((TOPIC, 0.0), ValueError),
    ((TOPIC, "0"), ValueError),
    ((TOPIC, None), ValueError),
    ((5, 0), ValueError),
    ((b"t", 0), ValueError),
    ((None, 0), ValueError),
    (("", 0), ValueError),
    ((".", 0), ValueError),
    (("..", 0), ValueError),
    (("t" * 250, 0), ValueError),
    (("not a topic!", 0), ValueError),
    (("t\udc80", 0), ValueError),
]
PARTITIONS: list[Wrong] = [
    (TOPIC, TypeError),
    (TP, TypeError),
    (5, TypeError),
    ([TOPIC], TypeError),
    ([TP, None], TypeError),
    *(([TP, value], error) for value, error in PARTITION),
]
NEEDED_PARTITIONS: list[Wrong] = [*PARTITIONS, (None, TypeError)]
NOT_HERE: list[Wrong] = [([(TOPIC, 99)], StateError), ([TP, ("another", 0)], StateError)]
OFFSET: list[Wrong] = [
    (-1, ValueError),
    (2**63, ValueError),
    (2**70, ValueError),
    (1.5, TypeError),
    (math.nan, TypeError),
    ("5", TypeError),
    (True, TypeError),
    (None, TypeError),
    ((5, ""), TypeError),
    (OffsetAndMetadata(-1), ValueError),
    (OffsetAndMetadata(2**63), ValueError),
    (OffsetAndMetadata(1.5), TypeError),  # type: ignore[arg-type]
    (OffsetAndMetadata(None), TypeError),  # type: ignore[arg-type]
    (OffsetAndMetadata(5, None), TypeError),  # type: ignore[arg-type]
    (OffsetAndMetadata(5, b"x"), TypeError),  # type: ignore[arg-type]
    (OffsetAndMetadata(5, "\ud800"), ValueError),
    (OffsetAndMetadata(5, "m" * 2**15), ValueError),
    (OffsetAndMetadata(5, "", -2), ValueError),
    (OffsetAndMetadata(5, "", 2**31), ValueError),
    (OffsetAndMetadata(5, "", 1.5), TypeError),  # type: ignore[arg-type]
    (OffsetAndMetadata(5, "", True), TypeError),
]
OFFSETS: list[Wrong] = [
    ([TP], TypeError),
    ([(TP, 5)], TypeError),
    (TP, TypeError),
    (TOPIC, TypeError),
    (5, TypeError),
    ({TOPIC: 5}, TypeError),
    ({TP: {}}, TypeError),
    ({("not a topic!", 0): 5}, ValueError),
    *(({TP: value}, error) for value, error in OFFSET),
]
TIMESTAMPS: list[Wrong] = [
    ([TP], TypeError),
    (None, TypeError),
    ({TOPIC: 5}, TypeError),
    ({TP: -1}, ValueError),
    ({TP: -1.5}, ValueError),
    ({TP: 2**63}, ValueError),
    ({TP: 1.5}, TypeError),
    ({TP: "5"}, TypeError),
    ({TP: True}, TypeError),
    ({TP: None}, TypeError),
    ({TP: datetime.datetime.now(datetime.UTC)}, TypeError),
    ({(TOPIC, -1): 5}, ValueError),
]
NAME: list[Wrong] = [
    (5, TypeError),
    (None, TypeError),
    (b"t", TypeError),
    ([TOPIC], TypeError),
    ("", ValueError),
    (".", ValueError),
    ("..", ValueError),
    ("t" * 250, ValueError),
    ("not a topic!", ValueError),
    ("t\ud800", ValueError),
]
TOPICS: list[Wrong] = [
    (TOPIC, TypeError),
    (b"t", TypeError),
    (5, TypeError),
    ([], ValueError),
    *(([TOPIC, value], error) for value, error in NAME if not isinstance(value, list)),
]
WORK: list[Wrong] = [([], TypeError), (None, TypeError), (5, TypeError), (TP, TypeError), ("r", TypeError)]
CALLBACK: list[Wrong] = [(5, TypeError), ("f", TypeError), ([], TypeError), (coroutine, TypeError)]
MAX_RECORDS: list[Wrong] = [*COUNTS, (0, ValueError), (-2, ValueError)]
BACKOFF: list[Wrong] = [*NEEDED_SECONDS, (-1, ValueError), (math.inf, ValueError), (1e300, ValueError)]
PACE: dict[str, list[Wrong]] = {
    "handler": [(None, TypeError), (5, TypeError), ("print", TypeError)],
    "concurrency": [*COUNTS, (None, TypeError), (0, ValueError), (-1, ValueError)],
    "max_in_flight": [*COUNTS, (0, ValueError), (1, ValueError)],
    "retry_backoff": [*BACKOFF, (20.0, ValueError)],
    "retry_backoff_max": BACKOFF,
    "timeout": [*SECONDS, (0, ValueError), (-1, ValueError), (math.inf, ValueError)],
    "drain": [*NEEDED_SECONDS, (-1, ValueError)],
    "on_progress": CALLBACK,
    "progress_interval": [*NEEDED_SECONDS, (0, ValueError), (-1, ValueError)],
}


def handler(record: Record) -> None: ...


async def async_handler(record: Record) -> None: ...


OF_CONSUMERS: dict[str, Method] = {
    "assign": Method({"partitions": NEEDED_PARTITIONS}, alone=True),
    "assignment": Method(),
    "beginning_offsets": Method({"partitions": NEEDED_PARTITIONS, "timeout": SECONDS}, {"partitions": [TP]}),
    "child_consumer_is_alive": Method(),
    "close": Method({"timeout": NEEDED_SECONDS, "drain": NEEDED_SECONDS}),
    "commit": Method({"offsets": OFFSETS, "timeout": SECONDS}),
    "commit_async": Method({"offsets": OFFSETS, "callback": CALLBACK}),
    "committed": Method({"partitions": NEEDED_PARTITIONS, "timeout": SECONDS}, {"partitions": [TP]}),
    "delay_revoke": Method({"partitions": NEEDED_PARTITIONS}),
    "done": Method({"work": WORK}),
    "end_offsets": Method({"partitions": NEEDED_PARTITIONS, "timeout": SECONDS}, {"partitions": [TP]}),
    "enforce_rebalance": Method(
        {"reason": [(5, TypeError), (None, TypeError), ("\ud800", ValueError), ("r" * 2**15, ValueError)]}
    ),
    "group_metadata": Method(),
    "in_flight": Method({"partitions": PARTITIONS, "timeout": NEEDED_SECONDS}),
    "list_topics": Method({"timeout": SECONDS}),
    "lost_partitions": Method(),
    "metrics": Method(),
    "offsets_for_times": Method({"timestamps": TIMESTAMPS, "timeout": SECONDS}, {"timestamps": {TP: 0}}),
    "partitions_for_topic": Method({"topic": NAME, "timeout": SECONDS}, {"topic": TOPIC}),
    "pause": Method({"partitions": NEEDED_PARTITIONS + NOT_HERE}),
    "paused": Method(),
    "poll": Method({"timeout": NEEDED_SECONDS, "max_records": MAX_RECORDS}),
    "position": Method({"partition": [*PARTITION, ((TOPIC, 99), StateError)], "timeout": SECONDS}, {"partition": TP}),
    "resume": Method({"partitions": NEEDED_PARTITIONS + NOT_HERE}),
    "run": Method(
        {
            **PACE,
            "order": [(None, TypeError), (5, TypeError), ([], TypeError), ("any", ValueError)],
            "retries": [*COUNTS, (-1, ValueError)],
            "dead_letter": [(5, TypeError), ([TOPIC], TypeError)]
            + [(value, error) for value, error in NAME if isinstance(value, str)],
            "producer": [("producer", TypeError), (5, TypeError), (object(), TypeError)],
        },
        {"handler": handler},
    ),
    "seek": Method(
        {"partition": [*PARTITION, ((TOPIC, 99), StateError)], "offset": OFFSET}, {"partition": TP, "offset": 5}
    ),
    "seek_to_beginning": Method({"partitions": PARTITIONS + NOT_HERE}),
    "seek_to_end": Method({"partitions": PARTITIONS + NOT_HERE}),
    "subscribe": Method(
        {
            "topics": [*TOPICS, (None, ValueError)],
            "pattern": [
                *((5, TypeError), (b"t.*", TypeError), (re.compile(b"t.*"), TypeError), ([], TypeError)),
                *(("", ValueError), ("\ud800", ValueError), ("t" * 2**15, ValueError)),
            ],
            "listener": [(5, TypeError), (NotAListener(), TypeError), (RebalanceListener, TypeError)],
        },
        {"topics": [TOPIC]},
        without={"pattern": "topics"},
    ),
    "subscription": Method(),
    "to_be_revoked_partitions": Method(),
    "unsubscribe": Method(),
    "wakeup": Method(),
    "watermarks": Method({"partition": PARTITION, "timeout": SECONDS}, {"partition": TP}),
}

OF_SHARE_CONSUMERS: dict[str, Method] = {
    "acknowledge": Method(
        {
            "work": WORK,
            "kind": [
                *((None, TypeError), (True, TypeError), (1.0, TypeError), ([], TypeError)),
                *(("keep", ValueError), ("", ValueError), (0, ValueError), (5, ValueError)),
            ],
        },
        {"work": Record(TOPIC, 0, 0)},
    ),
    "acquisition_lock_timeout": Method(),
    "close": Method({"timeout": NEEDED_SECONDS}),
    "commit": Method({"timeout": SECONDS}),
    "commit_async": Method(),
    "metrics": Method(),
    "poll": Method({"timeout": NEEDED_SECONDS, "max_records": [*MAX_RECORDS, (-1, ValueError)]}),
    "run": Method(PACE, {"handler": handler}),
    "set_acknowledgement_commit_callback": Method({"callback": CALLBACK}),
    "subscribe": Method({"topics": [*TOPICS, (None, TypeError)]}),
    "subscription": Method(),
    "unsubscribe": Method(),
    "wakeup": Method(),
}
