"""`python -m chaos --minutes N --seed S`: faults of all kinds on a cluster with clients of all kinds, and a verdict.

Everything is kept in build/chaos: the plan, the ledgers, the logs, the evidence and the report. A failing plan is
shrunk; `--plan FILE` runs a kept one.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from .cluster import new_brokers
from .disks import small_disks
from .evidence import Verdict
from .judge import judge
from .plan import (
    BROKERS,
    EXTRAS,
    Plan,
    all_clients,
    clients_of,
    few_clients,
    make_plan,
    moving_clients,
    plan_of,
    spark_clients,
)
from .report import make_report, save_report, to_markdown
from .run import run_plan
from .shrink import shrink
from .tally import add_run

HOME = Path(os.environ.get("CHAOS_HOME", Path(__file__).parents[2] / "build" / "chaos"))


def try_plan(plan: Plan, directory: Path) -> list[Verdict]:
    """Run a plan on brokers of its own, and judge it."""
    directory.mkdir(parents=True)
    began = time.monotonic()
    fills_disks = any(fault.kind == "full_disk" for fault in plan.faults)
    with ExitStack() as stack:
        disks = stack.enter_context(small_disks(BROKERS)) if fills_disks else None
        brokers = stack.enter_context(new_brokers(directory / "brokers.log", disks))
        evidence = run_plan(plan, brokers, directory, disks)
    verdicts = judge(evidence)
    report = make_report(plan, evidence, verdicts, time.monotonic() - began)
    save_report(directory, report)
    print(to_markdown(report))
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--pace", type=float, default=2.5, help="seconds between faults; 0: no faults")
    parser.add_argument("--few", action="store_true", help="few clients, as in the tests")
    parser.add_argument("--spark", type=int, default=1, help="how many Spark queries, chosen by seed")
    parser.add_argument("--moving", action="store_true", help="a topic that loses records: by retention, compaction, …")
    parser.add_argument("--unclean", action="store_true", help="a topic with unclean leader elections")
    parser.add_argument("--with", dest="extras", nargs="*", default=(), choices=EXTRAS, help="more kinds of faults")
    parser.add_argument("--tally", type=Path, help="a file to which the figures of the run are added")
    parser.add_argument("--plan", type=Path, help="a plan.json of an earlier run")
    parser.add_argument("--shrink-minutes", type=float, default=0.0, help="how long to shrink a failing plan")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is cleaned up
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    clients = (few_clients() if options.few else all_clients()) + spark_clients(options.seed, options.spark)
    clients += moving_clients(options.seed) if options.moving else ()
    clients += clients_of("unclean") if options.unclean else ()
    plan = make_plan(options.seed, options.minutes * 60, clients, options.pace, options.extras)
    if options.plan is not None:
        plan = plan_of(options.plan.read_text())
    home = HOME / f"{plan.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    verdicts = try_plan(plan, home / "0")
    if options.tally is not None:
        add_run(options.tally, json.loads((home / "0" / "report.json").read_text()))
    if not verdicts:
        return
    print(f"seed {plan.seed} fails; ledgers and logs: {home / '0'}")
    if options.shrink_minutes:
        attempts = iter(range(1, 10_000))
        rules = {verdict.rule for verdict in verdicts}

        def fails(candidate: Plan) -> bool:
            return any(found.rule in rules for found in try_plan(candidate, home / str(next(attempts))))

        smallest = shrink(plan, fails, options.shrink_minutes * 60)
        (home / "smallest.json").write_text(smallest.to_json())
        print(f"the smallest plan that fails: --plan {home / 'smallest.json'}")
    sys.exit(1)


if __name__ == "__main__":
    main()
