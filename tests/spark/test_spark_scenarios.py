"""The core of the scenarios of Spark's own suites, with headrace only. Soak tests run all of them beside `kafka`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.brokers.admin import Admin
from support.spark.scenarios import SCENARIOS
from support.spark.scenarios.differences import DIFFERENCES
from support.spark.scenarios.world import World

pytestmark = pytest.mark.timeout(300)
DOCS = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.mark.pyspark("4.2")
@pytest.mark.parametrize("name", [each.name for each in SCENARIOS.values() if each.is_core])
def test_headrace_does_what_spark_s_suite_asserts(name: str, spark: SparkSession, admin: Admin, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    assert World(spark, "headrace", admin, tmp_path).observe(scenario) == DIFFERENCES.get(name, scenario.expected)


def test_the_documentation_has_every_intended_difference() -> None:
    section = DOCS.read_text().split("### Differences from Spark's own tests\n")[1].split("\n#")[0]
    rows = [line.split("|")[1].strip().strip("`") for line in section.splitlines() if line.startswith("| `")]
    assert rows == list(DIFFERENCES)
    assert f"contain {len(SCENARIOS)} scenarios" in section
    assert DIFFERENCES.keys() <= SCENARIOS.keys()


def test_a_difference_is_one() -> None:
    assert not [name for name, found in DIFFERENCES.items() if found == SCENARIOS[name].expected]
