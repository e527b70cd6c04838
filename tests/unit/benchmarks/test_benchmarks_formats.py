"""The part `formats`: its data is the same in all formats, and its report compares with reading bytes."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from benchmarks import formats
from benchmarks.traffic_readings import DDL, readings
from headrace.formats import Avro, Json, Protobuf, Source

SOURCE = Source("readings")


def test_the_readings_are_the_same_in_all_formats():
    found = list(itertools.islice(readings(), 600))
    cells = {topic: pa.array(each) for topic, each in formats.cells_of(found).items()}
    as_json = Json(DDL).decode(cells["json"], SOURCE)
    as_avro = Avro(formats.OneSchema("AVRO")).decode(cells["avro"], SOURCE)
    as_protobuf = Protobuf(formats.OneSchema("PROTOBUF")).decode(cells["protobuf"], SOURCE)
    assert as_json.errors == as_avro.errors == as_protobuf.errors == {}
    assert as_avro.column.equals(as_json.column)
    assert as_protobuf.column.equals(as_json.column)
    assert as_avro.column.to_pylist() == [reading.fields for reading in found]


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
