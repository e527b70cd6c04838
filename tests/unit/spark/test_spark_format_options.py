"""The options of typed columns: which are accepted, and what a wrong one says."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from headrace.spark.options.formats import FormatOptions
from headrace.spark.options.parsers import OptionError
from headrace.spark.options.table import check_table_options
from headrace.spark.source import HeadraceSource

BASE = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
JSON = {"value.format": "json", "value.schema": "road STRING"}
REGISTRY = {"schema.registry.url": "http://localhost:1"}


def test_names_and_values_are_case_insensitive() -> None:
    found = FormatOptions.parse(
        {"Value.Format": "AVRO", "VALUE.schema.version": "Latest", "value.framing": "Apicurio", "MODE": "Permissive"}
        | REGISTRY
    )
    (field,) = found.fields
    assert (field.kind, field.version, field.framing, found.is_permissive) == ("avro", "latest", "apicurio", True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value.format": "xml"}, "value.format='xml' must be json, avro or protobuf"),
        ({"value.format": " "}, "value.format is empty"),
        ({"key.schema": "a INT"}, "key.schema needs key.format"),
        (JSON | {"value.message": "a.B"}, "value.message is for value.format=protobuf only"),
        (JSON | {"value.framing": "own"}, "value.framing='own' must be one of none, confluent, apicurio"),
        (JSON | {"value.flatten": "yes"}, "value.flatten='yes' must be true or false"),
        (
            JSON | {"value.schema.version": "1"},
            "Only one of these options can be set: value.schema, value.schema.version",
        ),
        (
            {"value.format": "avro", "value.schema.version": "0"} | REGISTRY,
            "value.schema.version: 0 is below the minimum",
        ),
        ({"value.format": "avro", "value.schema.id": "x"} | REGISTRY, "value.schema.id: 'x' is not an integer"),
        ({"value.format": "avro", "value.subject": "s"}, "value.subject needs schema.registry.url"),
        ({"value.format": "avro", "schema.registry.token": "x"}, "schema.registry.url is missing"),
        (REGISTRY, "schema.registry.url needs value.format or key.format"),
        (JSON | {"mode": "DROPMALFORMED"}, "Use mode=PERMISSIVE, and filter by value_error"),
        (JSON | {"mode": "strict"}, "mode='strict' must be FAILFAST or PERMISSIVE"),
        ({"mode": "PERMISSIVE"}, "mode=PERMISSIVE needs value.format or key.format"),
        ({"columns": " , "}, "columns=' , ' names no column"),
    ],
)
def test_a_wrong_option_says_what_to_do(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        FormatOptions.parse(options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value.formt": "json"}, "did you mean value.format?"),
        ({"schema.registry.usernam": "me"}, "did you mean schema.registry.username?"),
        ({"colums": "value"}, "did you mean columns?"),
    ],
)
def test_a_misspelled_name_is_refused(options: dict[str, str], said: str) -> None:
    source = HeadraceSource(BASE | JSON | options)
    with pytest.raises(OptionError) as caught:
        source.reader(source.schema())
    assert said in str(caught.value)


def test_columns_must_exist_once() -> None:
    for columns, said in (("value,speed", "there is no column speed"), ("value,VALUE", "columns names value twice")):
        with pytest.raises(OptionError, match=said):
            HeadraceSource(BASE | JSON | {"columns": columns}).schema()


def test_flattened_fields_must_not_have_the_name_of_another_column() -> None:
    both = {"key.format": "json", "key.schema": "Road STRING", "key.flatten": "true", "value.flatten": "true"}
    for options, said in (
        (
            {"value.schema": "Offset INT", "value.flatten": "true"},
            "the value has a field Offset, and the source's column",
        ),
        (both, "the value has a field road, and the key's column has the same name"),
        ({"value.schema": "value_error INT", "value.flatten": "true", "mode": "PERMISSIVE"}, "a field value_error"),
        ({"value.schema": "INT", "value.flatten": "true"}, "needs a struct, but the value is int"),
    ):
        with pytest.raises(OptionError) as caught:
            HeadraceSource(BASE | JSON | options).schema()
        assert said in str(caught.value)


def test_a_flattened_field_may_have_the_name_of_the_column_that_it_replaces() -> None:
    found = HeadraceSource(BASE | JSON | {"value.schema": "value STRING, x INT", "value.flatten": "true"}).schema()
    assert found.names[:3] == ["key", "value", "x"]


def test_several_topics_with_a_registry_need_a_subject() -> None:
    options = BASE | REGISTRY | {"value.format": "avro", "subscribe": "a,b"}
    with pytest.raises(OptionError, match=r"value\.subject is missing: the query has several topics"):
        HeadraceSource(options).schema()


@pytest.mark.parametrize(
    "options",
    [
        {"schema.registry.password": "hunter2"},
        {"schema.registry.token": "hunter2"},
        {"schema.registry.ssl.key.password": "hunter2"},
        {"schema.registry.url": "http://me:hunter2@localhost"},
        {"schema.registry.url": "http://first:8081,http://me:hunter2@second:8081"},
    ],
)
def test_a_table_keeps_no_secret(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))} cannot be an option of a table") as caught:
        check_table_options(options)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(FormatOptions.parse({"value.format": "avro"} | REGISTRY | options))
