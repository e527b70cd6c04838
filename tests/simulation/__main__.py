"""The long form of the simulation: many seeds of every kind, then groups of a thousand members.

Run everything with `PYTHONPATH=tests python -m simulation --crowds 3`. A failed run prints the command to repeat it.
"""

from __future__ import annotations

import argparse
import sys
import time

from .chaos import run
from .world import Scenario, Violation

KINDS = ("eager", "cooperative", "epoch")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"{', '.join(KINDS)} (default: all)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds per kind")
    parser.add_argument("--members", type=int, default=6, help="maximum number of members")
    parser.add_argument("--disturbances", type=int, default=25)
    parser.add_argument("--through-bytes", action="store_true", help="encode and decode every message")
    parser.add_argument("--crowds", type=int, default=0, help="number of runs per kind with a thousand members")
    options = parser.parse_args()
    kinds = options.kinds or KINDS
    if strange := set(kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(strange))}")
    failures = 0
    for kind in kinds:
        failures += _sweep(
            [
                Scenario(kind, seed, options.members, options.disturbances, options.through_bytes)
                for seed in range(options.first, options.first + options.seeds)
            ]
        )
        failures += _sweep([Scenario(kind, seed, 1000, 20) for seed in range(options.crowds)])
    return 1 if failures else 0


def _sweep(scenarios: list[Scenario]) -> int:
    if not scenarios:
        return 0
    began = time.perf_counter()
    failed, events, takes, rebalances, seconds, rest = 0, 0, 0, 0, 0.0, 0.0
    for scenario in scenarios:
        try:
            outcome = run(scenario)
        except Violation as violation:
            failed += 1
            if failed == 1:
                print(violation, file=sys.stderr)
            else:
                print(str(violation).splitlines()[0], "|", scenario, file=sys.stderr)
            continue
        events += outcome.events
        takes += outcome.takes
        rebalances += outcome.rebalances
        seconds += outcome.seconds
        rest = max(rest, outcome.settled_in)
    took = time.perf_counter() - began
    kind, members = scenarios[0].kind, scenarios[0].members
    print(
        f"{kind:12} {members:5} members  {len(scenarios):6} seeds  {failed} failed  {events:,} events"
        f"  {rebalances:,} rebalances  {takes:,} partitions taken  {seconds / 3600:.1f} virtual hours"
        f"  stable after at most {rest:.0f} s  {took:.1f} s",
        flush=True,
    )
    return failed


if __name__ == "__main__":
    sys.exit(main())
