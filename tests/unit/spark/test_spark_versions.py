"""The table of PySpark versions in the documentation, compared with the module that knows them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from headrace.spark import versions
from headrace.spark.options.parsers import GROUP_OPTIONS, KNOWN_OPTIONS, SINK_OPTIONS, OptionError

ROOT = Path(__file__).parents[3]
OLDEST = "4.0"


def table() -> dict[str, str]:
    """The version for each option that the table names."""
    page = (ROOT / "docs" / "spark.md").read_text()
    section = page[page.index("## PySpark versions") :].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (\d\.\d) \|", section, re.MULTILINE)
    assert rows, "there is no table"
    return {name: version for cell, version in rows for name in re.findall(r"`([\w.]+)", cell) if is_option(name)}


def is_option(name: str) -> bool:
    return name in KNOWN_OPTIONS.values() or name in SINK_OPTIONS


def test_the_table_has_the_version_of_every_option_that_needs_a_newer_one() -> None:
    newer = {name: version for name, version in table().items() if version != OLDEST}
    assert newer == {name: version for name, (version, _) in versions.OPTIONS_SINCE.items()}


def test_the_table_names_every_option_of_groups_triggers_and_sinks() -> None:
    triggers = {name for name in KNOWN_OPTIONS.values() if "Trigger" in name}
    assert {*GROUP_OPTIONS, *SINK_OPTIONS, *triggers} <= table().keys()


def test_every_extra_allows_the_oldest_version_of_the_table() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ranges = {item for items in extras.values() for item in items if item.startswith("pyspark")}
    assert ranges == {f"pyspark>={OLDEST},<5", f"pyspark[connect]>={OLDEST},<5"}


@pytest.mark.parametrize("name", versions.OPTIONS_SINCE)
def test_an_option_of_a_newer_version_is_rejected_unless_it_is_off(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(versions, "HAS_ADMISSION_CONTROL", False)
    versions.check_stream_options({"subscribe": "t", name: "false"})
    with pytest.raises(OptionError, match=rf"{name} needs PySpark 4.2 or newer"):
        versions.check_stream_options({name.upper(): "10 minutes"})
    monkeypatch.setattr(versions, "HAS_ADMISSION_CONTROL", True)
    versions.check_stream_options({name: "10 minutes"})


def test_timestamps_of_arrow_schemas_are_in_utc() -> None:
    from headrace.spark.schema import arrow_schema

    assert arrow_schema().field("timestamp").type.tz == "UTC"
