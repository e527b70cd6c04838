"""The report about share groups."""

from __future__ import annotations

from .datasets import PARTITIONS
from .markdown import NONE, count, markdown_table, number, verdict
from .results import Figure, Target, ratio
from .share import RECORD_BYTES, SECONDS
from .share_runs import BATCH, BYTES_LIMIT, Shares

_FROM = 500  # the lowest limit for which targets count
_OURS = "headrace, batch_optimized"


def sections(found: Shares) -> list[str]:
    return [_rates(found), _bytes(found)]


def _rates(found: Shares) -> str:
    limits = sorted({limit for rows in found.rates.values() for limit in rows})
    rows = [[name, *(_rate(figures.get(limit)) for limit in limits)] for name, figures in found.rates.items()]
    failures = [
        f"- {name}, {limit}: {figure}"
        for name, figures in found.rates.items()
        for limit, figure in figures.items()
        if isinstance(figure, str)
    ]
    targets = [verdict(target) for limit in limits if limit >= _FROM for target in _targets(found, limit)]
    return "\n\n".join(
        [
            "## Share groups",
            f"Records of {RECORD_BYTES} bytes per second for the only member of a share group, by `max.poll.records`: "
            f"{PARTITIONS} partitions, batches of {BATCH} records, implicit acknowledgement, {SECONDS:.0f} seconds "
            f"each after a warm-up; medians of {found.rounds}. In `batch_optimized` Java and "
            "confluent-kafka return whole batches, which exceeds small limits; headrace never does. Brokers lock at "
            "most 2,000 records of a partition, and persist acknowledgements before they respond.",
            markdown_table(("reader", *(f"{limit:,}" for limit in limits)), rows),
            *(["\n".join(failures)] if failures else []),
            "\n".join(["Targets:", "", *(f"- {line}" for line in targets)]),
        ]
    )


def _rate(figure: Figure | None) -> str:
    return NONE if figure is None else "failed" if isinstance(figure, str) else count(figure["rate"])


def _targets(found: Shares, limit: int) -> list[Target]:
    def rate(name: str) -> float | None:
        figure = found.rates.get(name, {}).get(limit)
        return None if figure is None or isinstance(figure, str) else figure["rate"]

    ours = rate(_OURS)
    return [
        Target(f"{limit:,}, × confluent-kafka", ratio(ours, rate("confluent, batch_optimized")), 2.0),
        Target(f"{limit:,}, × Java", ratio(ours, rate("Java, batch_optimized")), 1.0),
        Target(
            f"{limit:,}, record_limit, × Java", ratio(rate("headrace, record_limit"), rate("Java, record_limit")), 1.0
        ),
    ]


def _bytes(found: Shares) -> str:
    batches = sorted({batch for rows in found.bytes.values() for batch in rows})
    rows = [[mode, *(_ratio(figures.get(batch)) for batch in batches)] for mode, figures in found.bytes.items()]
    return "\n\n".join(
        [
            "## Cost of the record limit",
            f"Bytes fetched per returned byte, with `max.poll.records={BYTES_LIMIT}`, by the number of records in a "
            "batch of the producer. A broker sends whole batches; with `record_limit` it sends a batch again for each "
            "part of it.",
            markdown_table(("mode", *(f"{batch:,}" for batch in batches)), rows),
        ]
    )


def _ratio(figure: Figure | None) -> str:
    return NONE if figure is None else "failed" if isinstance(figure, str) else number(figure["ratio"])
