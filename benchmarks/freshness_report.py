"""The picture and the page of `freshness.py`."""

from __future__ import annotations

from pathlib import Path

from . import machine
from .freshness import CLIENTS, COMPARED, PARTITIONS, RATE, VALUE_BYTES, Results
from .markdown import markdown_table, verdict
from .results import Target

SOON = 1.0  # seconds: the first live record
SLOWER = 1.2  # what two lanes may take for the backlog, of what one takes

_SOONEST = 0.02  # seconds: where the picture begins
_COLOURS = {
    "headrace": "#1f6feb",
    "headrace-lanes": "#d1242f",
    "confluent": "#8250df",
    "confluent-tuned": "#bf3989",
    "java": "#9a6700",
}


def draw(results: Results, path: Path) -> None:
    """A PNG: freshness over time, one panel for each backlog."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    backlogs = _backlogs(results)
    figure, panels = pyplot.subplots(len(backlogs), 1, figsize=(11, 3.8 * len(backlogs)), squeeze=False)
    for panel, backlog in zip(panels[:, 0], backlogs, strict=True):
        latest = max(results.of(backlog, client)[0].done for client in CLIENTS)
        for client, name in CLIENTS.items():
            run = results.of(backlog, client)[0]
            shown = [(at, freshness) for at, freshness in run.series if _SOONEST < at <= latest * 1.05]
            times, values = zip((_SOONEST, backlog / RATE), *shown, strict=True)
            label = f"{name}\nbacklog done after {run.done:.1f} s"
            panel.plot(times, values, color=_COLOURS[client], label=label, drawstyle="steps-post")
            panel.axvline(run.done, color=_COLOURS[client], linestyle=":", linewidth=1)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlim(_SOONEST, latest * 1.05)
        panel.set_title(f"{backlog:,} records of backlog, {RATE:,} records/s written", loc="left")
        panel.set_ylabel("seconds behind")
        panel.grid(alpha=0.3)
        panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)
    panels[-1, 0].set_xlabel("seconds since the consumer is back in its group; dotted: its backlog is done")
    figure.suptitle("Now minus the timestamp of the newest record handed out, after a crash")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _backlogs(results: Results) -> list[int]:
    return sorted({run.backlog for run in results.runs})


def targets(results: Results) -> list[Target]:
    found = []
    for backlog in _backlogs(results):
        slowest = max(run.first_live for run in results.of(backlog, COMPARED[1]))
        found.append(Target(f"{backlog:,} records: seconds to the first live record", slowest, SOON, at_most=True))
        about = f"{backlog:,} records: time for the backlog, two lanes to one"
        found.append(Target(about, results.ratio(backlog), SLOWER, at_most=True))
    return found


def page(results: Results, picture: str = "") -> str:
    rows = []
    for backlog in _backlogs(results):
        for client, name in CLIENTS.items():
            runs = results.of(backlog, client)
            live = [run.first_live for run in runs]
            done = [run.done for run in runs]
            rows.append(
                [
                    name,
                    f"{backlog:,}",
                    f"{results.before[backlog, client] * 1000:.0f} ms",
                    f"{results.median(backlog, client, lambda run: run.first_live):.3f} s{_span(live)}",
                    f"{results.median(backlog, client, lambda run: run.done):.1f} s{_span(done)}",
                ]
            )
    head = ["client", "backlog", "behind before the crash", "first live record", "backlog done"]
    facts = "\n".join(f"- {name}: {value}" for name, value in machine.facts().items())
    return "\n\n".join(
        [
            "# Freshness after a crash",
            *([f"![freshness over time]({picture})"] if picture else []),
            _WHAT,
            markdown_table(head, rows),
            "\n".join(f"- {verdict(target)}" for target in targets(results)),
            f"{facts}\n- Load: {results.load:.1f} in the mean; broker, writer and reader share the cores",
            "Made by `python -m benchmarks.freshness --write docs/freshness.png`.\n",
        ]
    )


def _span(figures: list[float]) -> str:
    return f" ({min(figures):.2f} to {max(figures):.2f})" if len(figures) > 1 else ""


_WHAT = f"""\
What is measured: a topic of {PARTITIONS} partitions, values of {VALUE_BYTES} bytes, {RATE:,} records written a second.
A member of a group reads it, with auto-commit every second, and is killed. While it is gone a backlog is written; then
it is started again. Each client is alone with its group, one after the other, and looks at the timestamp of each
record, 500 of them a poll at most.

- *Freshness* is now minus the newest timestamp that was handed out so far, since the restart.
- *Behind before the crash* is the median of the first lives, in which all clients read at the same time, from their
  start on: it shows how busy the machine was, and not who is better.
- Times count from when the consumer is back in its group (the listener is told of its partitions): how long the group
  waits for a dead member is a matter of `session.timeout.ms`. What a client loads and compiles before is not in them.
- The *first live record* is the first one written after that.
- The *backlog is done* when all that was written before that was handed out: the backlog itself, and what the runs
  before have added to it at the steady rate.
- The backlog is written as fast as possible, with the timestamps that it would have at the steady rate. It stands for
  an outage of as many seconds as it has thousands of records.
- All settings are the clients' defaults, but for `auto.commit.interval.ms` (1 s) and sessions of 6 s. confluent-kafka
  *tuned* has `queued.min.messages=1000000` and `fetch.queue.backoff.ms=5`: by default it pauses for a second whenever
  100,000 messages wait to be consumed.
- In parentheses: the least and the most of several runs, of which the table has the median and the picture the first.
  headrace with and without two lanes take turns, and what is compared are their medians. Other work on the machine
  makes single runs differ much: look at the spread before you trust the second digit of a ratio."""
