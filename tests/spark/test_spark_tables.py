"""Tables and views in SQL. Spark passes no options to a Python source when a table is read."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("tables", 2)
    write(servers, topic, numbered(100))
    return topic


def create(spark: SparkSession, **options: str) -> str:
    name = unique("orders").replace("-", "_")
    given = ", ".join(f"'{option}' '{value}'" for option, value in options.items())
    spark.sql(f"CREATE TABLE {name} USING headrace OPTIONS ({given})")
    return name


def test_a_table_is_read_by_sql(spark: SparkSession, servers: str, admin: Admin) -> None:
    topic = admin.create("tables", 2)
    write(servers, topic, numbered(100, 1))
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    name = create(spark, **given, includeHeaders="true")

    def count(rest: str = "") -> int:
        return int(spark.sql(f"SELECT count(*) AS rows FROM {name} {rest}").collect()[0].rows)

    assert count() == 100
    write(servers, topic, numbered(50, 0))
    assert count() == 150
    assert "headers" in spark.table(name).columns
    ends = f'{{"{topic}":{{"0":10,"1":0}}}}'
    assert spark.read.option("endingOffsets", ends).table(name).count() == 10, "options of the read take precedence"
    assert count(f"WITH ('endingOffsets' = '{ends}')") == 10
    query = spark.readStream.option("startingOffsets", "earliest").table(name).writeStream.format("memory")
    query = query.queryName(f"{name}_rows").trigger(availableNow=True)
    assert query.start().awaitTermination(120)
    assert spark.table(f"{name}_rows").count() == 150
    spark.sql(f"DROP TABLE {name}")


def test_a_temporary_view_is_read_by_sql(spark: SparkSession, servers: str, topic: str) -> None:
    name = unique("view").replace("-", "_")
    options = f"'kafka.bootstrap.servers' '{servers}', subscribe '{topic}'"
    spark.sql(f"CREATE TEMPORARY VIEW {name} USING headrace OPTIONS ({options})")
    assert spark.table(name).count() == 100


def test_a_table_refuses_secret_options(spark: SparkSession, servers: str, topic: str) -> None:
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.sasl.password": "hunter2"}
    with pytest.raises(PySparkException, match=r"kafka\.sasl\.password cannot be an option of a table") as caught:
        create(spark, **given)
    assert "hunter2" not in str(caught.value)


def test_a_table_with_user_defined_columns_is_refused(spark: SparkSession, servers: str, topic: str) -> None:
    name = unique("own").replace("-", "_")
    options = f"'kafka.bootstrap.servers' '{servers}', subscribe '{topic}'"
    spark.sql(f"CREATE TABLE {name} (value BINARY) USING headrace OPTIONS ({options})")
    with pytest.raises(PySparkException, match="created without columns"):
        spark.table(name).count()
    spark.sql(f"DROP TABLE {name}")
