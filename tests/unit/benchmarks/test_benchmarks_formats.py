"""The part `formats`: its data is the same in both formats, and its report compares with reading bytes."""

from __future__ import annotations

import json
from datetime import datetime

import pyarrow as pa
import pytest

from benchmarks import formats
from headrace.formats import Avro, Json, Source

SOURCE = Source("readings")


def test_the_readings_are_the_same_as_json_and_as_avro():
    pairs = list(formats.readings(600))
    assert len(pairs) == 600
    as_json = Json(formats.DDL).decode(pa.array([text for text, _ in pairs]), SOURCE)
    as_avro = Avro(formats._Registry()).decode(pa.array([cell for _, cell in pairs]), SOURCE)
    assert as_json.errors == as_avro.errors == {}
    assert as_avro.column.cast(as_json.column.type).equals(as_json.column)
    first = json.loads(pairs[0][0])
    assert as_avro.column[0].as_py() == first | {"at": datetime.fromisoformat(first["at"])}


def test_the_report_compares_with_bytes():
    rates = {name: [] for name, _, _ in formats.CONTENDERS}
    rates |= {"headrace bytes": [4e6], "headrace Json": [1e6, 3e6, 2e6], "headrace Avro": [1e6]}
    lines = {line.split("|")[1].strip(): line for line in formats.report(rates).splitlines()}
    assert [cell.strip() for cell in lines["headrace Json"].split("|")][2:5] == ["2.00 M", "1.00 M – 3.00 M", "0.50"]
    assert "failed" in lines["confluent-kafka, json.loads"]
    assert "–" in lines["headrace Avro"]


@pytest.mark.parametrize("function", [function for _, _, function in formats.CONTENDERS])
def test_every_contender_exists(function):
    assert callable(getattr(formats, function))
