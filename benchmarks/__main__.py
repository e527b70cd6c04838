"""The command line: `python -m benchmarks`, or `make bench ARGS="…"`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from headrace import _native
from headrace.local import LocalBrokerError

from . import pinning, process, report
from .contenders import CONTENDERS, Contender
from .plan import NAMES, PARTS, plan
from .process import CommandFailed
from .run import NotEnoughRoom, benchmark
from .write_contenders import WRITERS, Writer

Named = TypeVar("Named", Contender, Writer)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if not _native.IS_RELEASE:
        print("The native module is built for development. `make bench` builds it as wheels have it.", file=sys.stderr)
        return 1
    # SIGTERM runs the same finally clauses as Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parts = _chosen_parts(options)
    names = _chosen_datasets(options)
    try:
        facts = _pin() if options.pin else {}
        found = benchmark(
            plan=plan(parts, records=options.records, repeat=options.repeat, names=names, quick=options.quick),
            contenders=_chosen(CONTENDERS, options) if "reading" in parts else [],
            writers=_chosen(WRITERS, options) if "writing" in parts else [],
            keep=options.keep,
            command=_command(options),
            facts=facts,
        )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (LocalBrokerError, CommandFailed, NotEnoughRoom, pinning.CannotPin) as error:
        print(error, file=sys.stderr)
        return 1
    print(report.results(found))
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(report.page(found))
    if options.json:
        options.json.write_text(json.dumps(dataclasses.asdict(found), indent=2) + "\n")
    return 0


def _pin() -> dict[str, str]:
    """Pin, count instructions if possible, and return the facts for the report. Raises CannotPin."""
    cores = pinning.use()
    reason = process.count_instructions()
    facts = {"Cores": str(cores), "Instructions": f"not counted: {reason}" if reason else "counted by `perf stat`"}
    for name, fact in facts.items():
        print(f"{name}: {fact}", file=sys.stderr, flush=True)
    return facts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Compare Kafka clients on this machine, with a separate broker."
    )
    add = parser.add_argument
    add(
        "--records",
        type=_positive,
        help="number of records of 100 bytes in all parts; a tenth as many of 1 KB (default: each part's own)",
    )
    add("--repeat", type=_positive, help="rounds over all contenders in all parts (default: each part's own)")
    add("--quick", action="store_true", help="fewer records and rounds: all parts in about half an hour on two cores")
    add(
        "--pin",
        action="store_true",
        help="give the broker cores of its own, and count instructions where perf can (Linux)",
    )
    add(
        "--only",
        metavar="NAME",
        action="append",
        help="only contenders with this in their name; repeatable; without --parts, measures only reading",
    )
    add("--parts", metavar="NAME,…", help=f"some of {', '.join(PARTS)} (default: all)")
    add("--datasets", metavar="NAME,…", help=f"some of {', '.join(NAMES)} (default: all)")
    add("--write", metavar="FILE", type=Path, help="write all results as a Markdown page")
    add("--json", metavar="FILE", type=Path, help="write every measurement as JSON")
    add("--keep", metavar="DIR", type=Path, help="keep the topics in this directory, and reuse those in it")
    return parser


def _command(options: argparse.Namespace) -> str:
    """The command to reproduce the run, without files of this machine."""
    words = ["python -m benchmarks"]
    words += [f"--{name}" for name in ("quick", "pin") if getattr(options, name)]
    words += [f"--{name} {value}" for name in ("records", "repeat") if (value := getattr(options, name))]
    if options.datasets:
        words.append(f"--datasets {options.datasets}")
    if options.parts:
        words.append(f"--parts {options.parts}")
    words += [f"--only '{name}'" for name in options.only or ()]
    return " ".join(words)


def _positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _chosen(every: Sequence[Named], options: argparse.Namespace) -> list[Named]:
    wanted: list[str] = options.only or [""]
    found = [c for c in every if any(text.lower() in c.name.lower() for text in wanted)]
    if not found:
        sys.exit(f"no contender has {' or '.join(wanted)} in its name: there are {'; '.join(c.name for c in every)}")
    return found


def _chosen_parts(options: argparse.Namespace) -> list[str]:
    if options.parts is None:
        return ["reading"] if options.only else list(PARTS)
    names = [name.strip().lower() for name in options.parts.split(",")]
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"no part is called {unknown[0]}: there are {', '.join(PARTS)}")
    return names


def _chosen_datasets(options: argparse.Namespace) -> list[str] | None:
    if options.datasets is None:
        return None
    every = {name.lower(): name for name in NAMES}
    names = [name.strip().lower() for name in options.datasets.split(",")]
    if unknown := [name for name in names if name not in every]:
        sys.exit(f"no dataset is called {unknown[0]}: there are {', '.join(every)}")
    return [every[name] for name in names]


if __name__ == "__main__":
    sys.exit(main())
