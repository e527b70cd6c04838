"""Options of tables: `CREATE TABLE … USING headrace OPTIONS (…)`.

Spark passes the options of a table to a Python source when the table is created, among its other properties, but not
when it is read: then the source only gets the schema in the catalog. So the source keeps the options in the schema, in
the metadata of a column, and finds them there when the table is read. Options of the read itself take precedence.

Metadata of columns is copied with the columns, into Parquet files for instance. So secrets are rejected.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping

from pyspark.sql.types import StructType

from ..._security.settings import SYNONYMS
from ...config.consumer import ConsumerConfig, dotted
from .formats import secret_format_options
from .parsers import OptionError, lowercase_names

_METADATA_KEY = "headrace.options"
_COLUMN = "timestampType"
_PROPERTY_PREFIX = "option."  # Spark's, for options among the properties of a table

_SECRETS = {field.name for field in dataclasses.fields(ConsumerConfig) if field.metadata["secret"]}
_SECRET_SETTINGS = {dotted(name) for name in (*_SECRETS, *(alias for alias, of in SYNONYMS.items() if of in _SECRETS))}
_SECRET_NAMES = re.compile(r"password|secret|token|credential", re.IGNORECASE)


def created_table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of the table that is being created; None if these are not the properties of a table."""
    properties = lowercase_names(given)
    found = {
        name.removeprefix(_PROPERTY_PREFIX): value
        for name, value in properties.items()
        if name.startswith(_PROPERTY_PREFIX)
    }
    return found if found and "provider" in properties else None


def check_table_options(options: Mapping[str, str]) -> None:
    """Raises OptionError if one of them is a secret."""
    secrets = [*filter(_is_secret, options), *secret_format_options(options)]
    if secrets:
        name = secrets[0]
        raise OptionError(
            f"{name} cannot be an option of a table, because everybody who reads the table could see it. Set it "
            f"when the table is read, by spark.read.option({name!r}, …).table(…), or use CREATE TEMPORARY VIEW … "
            f"USING headrace OPTIONS (…)"
        )


def _is_secret(name: str) -> bool:
    setting = name.removeprefix("kafka.")
    return name != setting and (setting in _SECRET_SETTINGS or _SECRET_NAMES.search(setting) is not None)


def with_table_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema for the catalog, with the options in it."""
    schema = StructType.fromJson(schema.jsonValue())
    column = schema[_COLUMN] if _COLUMN in schema.names else schema[0]
    column.metadata = {_METADATA_KEY: json.dumps(dict(options), sort_keys=True)}
    return schema


def read_table_options(schema: StructType) -> dict[str, str]:
    """The options of the table that is being read; empty if it is not a table."""
    texts = [field.metadata[_METADATA_KEY] for field in schema if _METADATA_KEY in (field.metadata or {})]
    return {str(name): str(value) for text in texts for name, value in json.loads(text).items()}
