"""How readers reach Python workers, so that a worker without headrace reports what to do.

Spark sends readers to workers as pickles, and a pickle names its classes: a worker whose Python has no headrace would
report `No module named 'headrace'` at the end of a long stack trace. So the functions of this module are pickled by
value. They run where no other module of this package may exist, and import headrace only inside of
`unpickle_on_worker`.
"""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle


def reduce_for_worker(make: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """The result of `__reduce__` for an object that a worker creates by `make(*args)`."""
    from ... import __version__

    return unpickle_on_worker, (__version__, pickle.dumps((make, args)))


def unpickle_on_worker(version: str, contents: bytes) -> Any:
    """Raises RuntimeError if headrace is missing, or is another version than the driver's."""
    try:
        import headrace

        if headrace.__version__ != version:
            raise RuntimeError(
                f"{_this_worker()} has headrace {headrace.__version__}, but the driver has {version}: install the same "
                f"version in both"
            )
        import headrace.spark.worker.reader
        import headrace.spark.worker.tuning
    except ImportError as error:
        raise headrace_missing(error) from None
    headrace.spark.worker.tuning.disable_delayed_acks()
    make, args = pickle.loads(contents)
    return make(*args)


def headrace_missing(error: ImportError) -> RuntimeError:
    return RuntimeError(
        f"{_this_worker()} cannot import headrace ({error}): install it there, or set PYSPARK_PYTHON or "
        f"spark.pyspark.python to a Python that has it before you create the session"
    )


def _this_worker() -> str:
    return f"The Python of a Spark worker ({sys.executable} on {platform.node()})"


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
