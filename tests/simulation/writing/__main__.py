"""Many simulations of the write path. A failed one prints its events and the command that repeats it.

PYTHONPATH=tests python -m simulation.writing --seeds 10000
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable

from .world import Outcome

KINDS = ("idempotence", "transactions", "exactly_once", "sink")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.writing", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"{', '.join(KINDS)} (default: all)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds per kind")
    options = parser.parse_args()
    if strange := set(options.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(strange))}")
    seeds = range(options.first, options.first + options.seeds)
    return 1 if sum(_sweep(kind, seeds) for kind in options.kinds or KINDS) else 0


def _sweep(kind: str, seeds: range) -> int:
    run: Callable[[int], Outcome] = importlib.import_module(f".{kind}", __package__).run
    began = time.perf_counter()
    failed = 0
    figures: Counter[str] = Counter()
    for seed in seeds:
        try:
            outcome = run(seed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other seeds are simulated, too
            failed += 1
            text = str(error) if failed == 1 else str(error).partition("\n")[0]
            print(f"{type(error).__name__}: {text}", file=sys.stderr)
            print(f"again: python -m simulation.writing {kind} --first {seed} --seeds 1", file=sys.stderr)
            continue
        figures.update(outcome.faults)
        figures.update(records=outcome.records, requests=outcome.requests, lost=outcome.lost)
        figures["virtual hours"] += outcome.seconds  # type: ignore[assignment]
    figures["virtual hours"] = round(figures["virtual hours"] / 3600)
    text = "  ".join(f"{count:,} {name}" for name, count in figures.items())
    print(f"{kind:12} {len(seeds):6} seeds  {failed} failed  {text}  {time.perf_counter() - began:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
