"""What a Python worker of Spark unpacks first, so that one without headrace says what to do.

Readers are sent to workers pickled, and a pickle names its classes: a worker whose Python has no headrace would say
`No module named 'headrace'` at the end of a long stack trace. So `unpack`, and the source that `register` registers,
are sent by value. They run where nothing else of this package may be there, and import it inside of `unpack` only.
"""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


def packed(make: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """What `__reduce__` returns for an object that a worker makes by `make(*args)`."""
    from headrace import __version__

    return unpack, (__version__, pickle.dumps((make, args)))


def unpack(version: str, contents: bytes) -> Any:
    """Raises RuntimeError where headrace is missing, or is another version."""
    where = f"the Python of a Spark worker, {sys.executable} on {platform.node()}"
    try:
        import headrace
        import headrace.spark.source
        from headrace.spark.prompt_acks import acknowledge_at_once
    except ImportError as error:
        raise RuntimeError(
            f"{where}, has no headrace ({error}): install it there, or set PYSPARK_PYTHON or spark.pyspark.python to "
            f"a Python that has it, before the session is made"
        ) from None
    if headrace.__version__ != version:
        raise RuntimeError(f"{where}, has headrace {headrace.__version__}, and the driver has {version}")
    acknowledge_at_once()
    make, args = pickle.loads(contents)
    return make(*args)


class RegisteredSource(DataSource):
    """The source for a session that does not find it by itself."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        try:
            from headrace.spark.source import HeadraceSource
        except ImportError:
            unpack("", b"")
            raise
        self._source = HeadraceSource(options)

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self._source.streamReader(schema)


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
