"""Faults of all kinds on a cluster with clients of many kinds, for less than a minute. `make soak` runs it for longer.

PYTHONPATH=tests .venv/bin/python -m chaos --minutes 10 --seed 7
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.judge import judge
from chaos.plan import few_clients, make_plan
from chaos.run import run_plan
from headrace import LocalBroker

SEED = 27
SECONDS = 20.0


@pytest.mark.timeout(400)
def test_no_promise_is_broken_while_brokers_clients_and_connections_fail(
    whole_cluster: LocalBroker, tmp_path: Path
) -> None:
    plan = make_plan(SEED, SECONDS, few_clients(), pace=1.0)
    assert len({fault.kind for fault in plan.faults}) >= 9
    evidence = run_plan(plan, whole_cluster, tmp_path)
    verdicts = judge(evidence)
    assert [str(verdict) for verdict in verdicts[:20]] == [], f"seed {SEED}: see {tmp_path}"
    assert len(evidence.faults) == len(plan.faults)
    assert all(log.visible for log in evidence.logs.values())
