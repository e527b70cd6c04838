"""The report about costs by number of partitions."""

from __future__ import annotations

from collections.abc import Mapping

from .markdown import NONE, markdown_table, number
from .results import Figure, Figures
from .scaling import A_POLL, IDLE, growth

# The figures of the report, in this order, with their names.
_ROWS = {
    "first record ms": "first record, ms",
    "poll µs": f"poll of {A_POLL} records, µs",
    "empty poll µs": "poll without records, µs",
    "idle CPU %": "idle, CPU %",
    "broker's idle CPU %": "idle, broker's CPU %",
    "idle fetches/s": "idle, fetches/s",
    "MB": "memory, MB",
}
_ABOUT = f"""\
One consumer, assigned to all partitions of its own topics, which have the same number of records altogether. *First \
record* is the time from `assign()` until the poll with the first record returns. *Poll* is the median cost of a poll \
whose records are buffered; a dash means that too few polls were full. *Idle* is a consumer that has read everything, \
for {IDLE:.0f} seconds. *Memory* is the growth of the resident size from before the consumer was created until it \
is idle. *Exponent* is e of cost ~ partitions^e (the slope of the logarithms, least squares): 0 is constant, 1 is \
proportional. confluent-kafka has `fetch.queue.backoff.ms=5`, so that it does not pause."""


def section(found: Mapping[str, Figures]) -> str:
    sizes = list(dict.fromkeys(size for by_size in found.values() for size in by_size))
    head = ("client", *(f"{int(size):,}" for size in sizes), "exponent", "of the last decade")
    rows = [
        _row(f"{client}, {title}", by_size, sizes, name)
        for name, title in _ROWS.items()
        for client, by_size in found.items()
        if any(_cost(figure, name) is not None for figure in by_size.values())
    ]
    failures = [
        f"- {client}, {int(size):,} partitions: {figure}"
        for client, by_size in found.items()
        for size, figure in by_size.items()
        if isinstance(figure, str)
    ]
    parts = ["## Cost by number of partitions", _ABOUT, markdown_table(head, rows)]
    return "\n\n".join([*parts, *(["\n".join(failures)] if failures else [])])


def _row(title: str, by_size: Figures, sizes: list[str], name: str) -> list[str]:
    costs = {size: _cost(by_size.get(size, ""), name) for size in sizes}
    measured = [(int(size), cost) for size, cost in costs.items() if cost is not None]
    found = growth(measured)
    exponents = [NONE if each is None else f"{each:.2f}" for each in (found.overall, found.last_decade)]
    return [title, *(number(cost) for cost in costs.values()), *exponents]


def _cost(figure: Figure, name: str) -> float | None:
    return None if isinstance(figure, str) else figure.get(name)
