"""All scenarios of Spark's own suites, with `kafka` and `headrace` in one session of PySpark 4.2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.programs import spark_scenarios
from support.spark.peer import run_beside_jvm
from support.spark.scenarios import SCENARIOS
from support.spark.scenarios.differences import DIFFERENCES

# The scenarios take half an hour, and the environment is created once, which takes a minute or two.
_TIMEOUT = 3600
pytestmark = [pytest.mark.soak, pytest.mark.timeout(_TIMEOUT + 1000)]


@pytest.fixture(scope="module")
def found(servers: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    client = find_spec("confluent_kafka")
    assert client is not None
    assert client.origin is not None
    job = {
        "servers": servers,
        "directory": str(tmp_path_factory.mktemp("scenarios")),
        "packages": str(Path(client.origin).parents[1]),
        "sources": ["kafka", "headrace"],
        "names": list(SCENARIOS),
        "ranges": 1000,
    }
    return run_beside_jvm(spark_scenarios, job, timeout=_TIMEOUT)


def test_spark_s_own_source_does_what_its_suites_assert(found: Any) -> None:
    """Otherwise a scenario is not what its name says."""
    observed = {name: each["kafka"] for name, each in found["found"].items()}
    assert observed == {name: each.expected for name, each in SCENARIOS.items()}


def test_headrace_does_the_same_but_for_the_intended_differences(found: Any) -> None:
    observed = {name: each["headrace"] for name, each in found["found"].items()}
    assert observed == {name: DIFFERENCES.get(name, each.expected) for name, each in SCENARIOS.items()}


def test_ranges_are_split_into_tasks_as_by_spark_s_calculator(found: Any) -> None:
    assert found["ranges"] == []
