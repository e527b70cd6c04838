"""Typed columns with a registry that wants TLS and a login, and in queries of consumer groups and share groups."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.local import LocalRegistry
from support.brokers.admin import Admin, unique
from support.formats.guarded_registry import GuardedRegistry, guarded_registry
from support.harness.share_consumers import share_group
from support.harness.waiting import wait_for
from support.spark.avro_topics import Schema, register, write_avro
from support.spark.streams import DEADLINE, Stream

pytestmark = pytest.mark.timeout(400)

SECRET = "hunter2-of-the-registry"
SCHEMA: Schema = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "road", "type": "string"}, {"name": "speed", "type": "double"}],
}
LOGINS = {
    "basic": (
        f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}",
        {"schema.registry.username": "me", "schema.registry.password": SECRET},
    ),
    "bearer": (f"Bearer {SECRET}", {"schema.registry.token": SECRET}),
}


def options_of(guard: GuardedRegistry, login: dict[str, str]) -> dict[str, str]:
    return {
        "value.format": "avro",
        "schema.registry.url": guard.url,
        "schema.registry.ssl.ca.location": guard.ca_file,
        **login,
    }


def assert_no_secret(*shown: str) -> None:
    secrets = (SECRET, *(authorization.partition(" ")[2] for authorization, _ in LOGINS.values()))
    assert not [text for text in shown if any(secret in text for secret in secrets)]


@pytest.mark.parametrize("kind", LOGINS)
def test_a_registry_with_tls_and_a_login_is_asked_by_the_source_and_the_sink(
    spark: SparkSession,
    servers: str,
    admin: Admin,
    schema_registry: LocalRegistry,
    kind: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic = admin.create("guarded")
    register(schema_registry.url, f"{topic}-value", SCHEMA)
    authorization, login = LOGINS[kind]
    with guarded_registry(schema_registry.url, authorization, tmp_path) as guard:
        options = {"kafka.bootstrap.servers": servers, **options_of(guard, login)}
        rows = spark.sql("SELECT concat('A', id) AS road, id / 2.0D AS speed FROM range(5)")
        rows.write.format("headrace").options(**options, topic=topic).mode("append").save()
        frame: Any = spark.read.format("headrace").options(**options, subscribe=topic).load()
        found = frame.select("value.*").collect()
        assert sorted((row.road, row.speed) for row in found) == [(f"A{number}", number / 2) for number in range(5)]
        assert {request.headers.get("authorization") for request in guard.server.requests} == {authorization}

        frame.explain(True)
        shown = [repr(frame), frame._jdf.queryExecution().toString()]
        wrong = {name: value.replace(SECRET, f"not-{SECRET}") for name, value in options.items()}
        without_ca = {name: value for name, value in options.items() if not name.endswith("ca.location")}
        for refused, reason in ((wrong, "rejected the login"), (without_ca, "cannot verify the certificate")):
            with pytest.raises(PySparkException) as caught:
                spark.read.format("headrace").options(**refused, subscribe=topic).load()
            shown.append(str(caught.value))
            assert reason in shown[-1]
    assert_no_secret(*shown, *capfd.readouterr())


@pytest.fixture
def guard(schema_registry: LocalRegistry, tmp_path: Path) -> Iterator[GuardedRegistry]:
    with guarded_registry(schema_registry.url, LOGINS["bearer"][0], tmp_path) as guard:
        yield guard


@pytest.mark.parametrize("kind", ["consumer group", "share group"])
def test_a_query_of_a_group_has_typed_columns(
    spark: SparkSession,
    servers: str,
    admin: Admin,
    schema_registry: LocalRegistry,
    guard: GuardedRegistry,
    kind: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic = admin.create("typed-members", 2)
    schema_id = register(schema_registry.url, f"{topic}-value", SCHEMA)
    write_avro(servers, topic, schema_id, SCHEMA, ({"road": f"A{number}", "speed": 1.0} for number in range(10)))
    stream = Stream(spark, servers, topic, tmp_path)
    stream.options |= options_of(guard, LOGINS["bearer"][1])
    if kind == "consumer group":
        stream.options |= {"kafka.group.id": unique("typed"), "group.membership": "true"}
    else:
        del stream.options["startingOffsets"]
        stream.options["share.group.id"] = share_group(servers)
    query: Any = stream.start(processingTime="50 milliseconds")
    try:
        wait_for("the rows", lambda: _processed(query) >= 10, DEADLINE)
        query.explain(True)
    finally:
        query.stop()
    assert {row.road for row in stream.table().select("value.*").collect()} == {f"A{number}" for number in range(10)}
    kept = (path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert_no_secret(repr(list(query.recentProgress)), *kept, *capfd.readouterr())


def _processed(query: Any) -> int:
    assert query.isActive, query.exception()
    return sum(progress["numInputRows"] for progress in query.recentProgress)
