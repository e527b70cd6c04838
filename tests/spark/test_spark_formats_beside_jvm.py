"""Typed columns beside Spark's own connector with from_json and from_avro, in one session of PySpark 4.2."""

from __future__ import annotations

import decimal
import json
import random
from datetime import UTC, date, datetime
from typing import Any

import pytest

from headrace.local import LocalRegistry
from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, write
from support.programs import spark_compare_formats
from support.spark.avro_topics import framed, register
from support.spark.peer import run_beside_jvm

# The environment is installed once, which takes a minute or two.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

COUNT = 500
DDL = (
    "s STRING, i INT, l BIGINT, d DOUBLE, f FLOAT, b BOOLEAN, at TIMESTAMP, day DATE, price DECIMAL(20,4), "
    "a ARRAY<INT>, m MAP<STRING, DOUBLE>, o STRUCT<x: STRING, y: ARRAY<STRUCT<z: INT>>>"
)
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "s", "type": ["null", "string"]},
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "d", "type": "double"},
        {"name": "f", "type": "float"},
        {"name": "b", "type": "boolean"},
        {"name": "bytes", "type": "bytes"},
        {"name": "fixed", "type": {"type": "fixed", "name": "Fixed", "size": 3}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}},
        {"name": "a", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "o", "type": {"type": "record", "name": "O", "fields": [{"name": "x", "type": "string"}]}},
    ],
}


def json_value(chance: random.Random) -> bytes:
    moment = datetime.fromtimestamp(chance.randrange(2**31), UTC)
    found: dict[str, Any] = {
        "s": "".join(chance.choices('aä🚗"\\\n\t/', k=5)),
        "i": chance.randrange(-(2**31), 2**31),
        "l": chance.randrange(-(2**63), 2**63),
        "d": chance.uniform(-1e9, 1e9) * 10.0 ** chance.randrange(-20, 20),
        "f": chance.randrange(1000) / 8,
        "b": chance.random() < 0.5,
        "at": chance.choice(
            [moment.isoformat(), moment.isoformat().replace("+00:00", "Z"), f"{moment:%Y-%m-%d %H:%M:%S}"]
        ),
        "day": f"{moment:%Y-%m-%d}",
        "price": chance.randrange(10**10) / 100,
        "a": [chance.randrange(9) for _ in range(chance.randrange(3))],
        "m": {f"k{n}": chance.random() for n in range(chance.randrange(3))},
        "o": {"x": "x", "y": [{"z": n} for n in range(chance.randrange(3))]},
    }
    kept = {name: (None if chance.random() < 0.1 else value) for name, value in found.items() if chance.random() < 0.9}
    return json.dumps(kept, ensure_ascii=chance.random() < 0.5).encode()


def avro_value(chance: random.Random) -> dict[str, Any]:
    micros = chance.randrange(2**50)
    return {
        "s": chance.choice([None, "", "ä🚗"]),
        "i": chance.randrange(-(2**31), 2**31),
        "l": chance.choice([None, chance.randrange(-(2**63), 2**63)]),
        "d": chance.uniform(-1e300, 1e300),
        "f": chance.randrange(1000) / 8,
        "b": chance.random() < 0.5,
        "bytes": chance.randbytes(chance.randrange(5)),
        "fixed": chance.randbytes(3),
        "e": chance.choice("AB"),
        "ms": micros // 1000,
        "us": chance.choice([None, micros]),
        "local": micros,
        "day": date(2026, 1, 1),
        "price": decimal.Decimal(chance.randrange(-(10**15), 10**15)).scaleb(-4),
        "a": [chance.choice([None, 1]) for _ in range(chance.randrange(3))],
        "m": {f"k{n}": chance.random() for n in range(chance.randrange(3))},
        "o": {"x": "x"},
    }


@pytest.fixture(scope="module")
def found(admin: Admin, servers: str, schema_registry: LocalRegistry) -> Any:
    chance = random.Random(21)
    topics = {name: admin.create(f"formats-{name}", 2) for name in ("json", "avro")}
    write(servers, topics["json"], [Outgoing(json_value(chance), None, number % 2) for number in range(COUNT)])
    schema_id = register(schema_registry.url, f"{topics['avro']}-value", AVRO)
    values = [framed(schema_id, AVRO, avro_value(chance)) for _ in range(COUNT)]
    write(servers, topics["avro"], [Outgoing(value, None, number % 2) for number, value in enumerate(values)])
    job = {
        "servers": servers,
        "registry": schema_registry.url,
        "json": {"topic": topics["json"], "schema": DDL},
        "avro": {"topic": topics["avro"], "schema": json.dumps(AVRO)},
    }
    return run_beside_jvm(spark_compare_formats, job)


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_typed_columns_equal_those_of_spark_s_own_functions(found: dict[str, str], kind: str) -> None:
    assert found[kind] == f"the same, {COUNT} rows"
