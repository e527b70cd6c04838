"""Tables: `CREATE TABLE … USING headrace OPTIONS (…)`.

Spark hands a Python source the options of a table when the table is created, among its other properties, and none of
them when it is read: only the schema that the catalog has. So the options are kept there, in the metadata of a column,
where they are found again when the table is read. What is given to a read itself goes before them.

Metadata of columns goes where the columns go, into Parquet files for instance. So secrets are refused.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping

from pyspark.sql.types import StructType

from ..config import ConsumerConfig, dotted
from ..security.settings import SYNONYMS
from .option_values import OptionError, lowered

_KEY = "headrace.options"
_COLUMN = "timestampType"
_OF_TABLES = "option."  # Spark's prefix, among the properties of a table

_SECRETS = {field.name for field in dataclasses.fields(ConsumerConfig) if field.metadata["secret"]}
_SECRET_SETTINGS = {dotted(name) for name in (*_SECRETS, *(alias for alias, of in SYNONYMS.items() if of in _SECRETS))}
_SECRET_NAMES = re.compile(r"password|secret|token|credential", re.IGNORECASE)


def options_of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of the table that is being created; None if these are not the properties of a table."""
    properties = lowered(given)
    found = {name.removeprefix(_OF_TABLES): properties[name] for name in properties if name.startswith(_OF_TABLES)}
    return found if found and "provider" in properties else None


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema as the catalog keeps it. Raises OptionError if a secret is among the options."""
    for name in options:
        setting = name.removeprefix("kafka.")
        if name != setting and (setting in _SECRET_SETTINGS or _SECRET_NAMES.search(setting)):
            raise OptionError(
                f"{name} cannot be an option of a table, where others could read it: give it when the table is read, "
                f"by spark.read.option({name!r}, …).table(…), or use CREATE TEMPORARY VIEW … USING headrace OPTIONS (…)"
            )
    schema = StructType.fromJson(schema.jsonValue())
    schema[_COLUMN].metadata = {_KEY: json.dumps(dict(options), sort_keys=True)}
    return schema


def kept_options(schema: StructType) -> dict[str, str]:
    """Of the table that is read; nothing if it is none."""
    texts = [field.metadata[_KEY] for field in schema if _KEY in (field.metadata or {})]
    return {str(name): str(value) for text in texts for name, value in json.loads(text).items()}
