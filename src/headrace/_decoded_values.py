"""Decoded keys and values as Python objects: what `record.value` and `records.rows()` return. Needs pyarrow.

A format may need a schema registry. A background thread asks it, when records arrive (`prepare`). If that fails, the
next access asks again; but an event loop must not wait for a registry: there, another background thread asks, and the
access raises the error of the last attempt.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ._format import DecodedColumn, FieldName, Format, Source
from .errors import RecordDecodeError
from .types import TopicPartition

Batch = Any  # that of `records.py`, which is above this module
Deserializer = Format | Callable[[bytes], Any]

_WINDOW, _WINDOWS = 256, 16
_MOST_PREPARATIONS = 4


class _Preparations:
    """The columns for which a background thread asks a registry: one thread each, and not many at a time. An access
    that finds no room starts none: a later one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the set, for a moment
        self._columns: set[DecodedValues] = set()

    def begin(self, column: DecodedValues) -> bool:
        """False if the column is being prepared, or if there is no room. Otherwise `end` must follow."""
        with self._lock:
            if column in self._columns or len(self._columns) >= _MOST_PREPARATIONS:
                return False
            self._columns.add(column)
            return True

    def end(self, column: DecodedValues) -> None:
        with self._lock:
            self._columns.discard(column)


_preparations = _Preparations()


def _forget_preparations() -> None:
    """The threads of the parent do not exist in a forked child, and would never end their preparations."""
    global _preparations
    _preparations = _Preparations()


os.register_at_fork(after_in_child=_forget_preparations)


class _Prepared(NamedTuple):
    """What a format has prepared for a column."""

    found: Any


class _Failed(NamedTuple):
    """Why a format could not prepare a column."""

    error: Exception


class DecodedValues:
    """The decoded keys or values of a batch as Python objects. Each is decoded once.

    A function is called when a value is first needed. A format decodes all of them at once then: that is faster by far
    than one by one. Nothing is kept of a call that fails because a registry cannot be reached.
    """

    def __init__(self, batch: Batch, field: FieldName, used: Deserializer, to_arrow: Callable[[Batch], Any]) -> None:
        self._batch = batch
        self._field = field
        self._used = used
        self._to_arrow = to_arrow
        self._errors: Mapping[int, str] = {}
        self._decoded: Any = None
        # Set by the thread that prepares, as a whole. None if nobody has prepared the column.
        self._preparation: _Prepared | _Failed | None = None
        self._called: dict[int, Any] = {}

    def prepare(self) -> None:
        """Lets a format ask a registry. An error is not raised here: it concerns whoever needs a value."""
        if isinstance(self._used, Format):
            try:
                self._preparation = _Prepared(self._used.prepare(self._cells(), self._source))
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the user and not to this thread
                if not isinstance(self._preparation, _Prepared):  # another thread may have succeeded
                    self._preparation = _Failed(error)

    @property
    def _source(self) -> Source:
        return Source(self._batch.topic, self._field)

    def _cells(self) -> Any:
        return self._to_arrow(self._batch).column(self._field).combine_chunks()

    def get(self, row: int, raw: bytes | None) -> tuple[Any, RecordDecodeError | None]:
        """The value of a row, or why there is none. Null stays None, and is given to no function."""
        if raw is None:
            return None, None
        if isinstance(self._used, Format):
            if self._decoded is None:
                result = self._decode(self._used)
                self._errors, self._decoded = result.errors, _Values(result.column)
            if row in self._errors:
                return None, self._error(row, self._errors[row])
            value = self._decoded[row]
            if isinstance(value, _NoValue):
                return None, self._error(row, value.reason)
            return value, None
        if row not in self._called:
            try:
                self._called[row] = self._used(raw)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises names the record
                named = self._error(row, f"{type(error).__name__}: {error}")
                named.__cause__ = error
                return None, named
        return self._called[row], None

    def _decode(self, used: Format) -> DecodedColumn:
        """All values. Raises the error of the preparation."""
        if isinstance(self._preparation, _Failed):
            if _is_on_event_loop():
                self._prepare_in_background()
            else:
                self.prepare()
        preparation = self._preparation
        if preparation is None:
            return used.decode(self._cells(), self._source)
        if isinstance(preparation, _Failed):
            raise preparation.error.with_traceback(None)
        return used.decode_prepared(self._cells(), self._source, preparation.found)

    def _prepare_in_background(self) -> None:
        """Does not wait. The thread is a daemon: a program that ends does not wait for a registry."""
        preparations = _preparations
        if not preparations.begin(self):
            return

        def carry_out() -> None:
            try:
                self.prepare()
            finally:
                preparations.end(self)

        try:
            threading.Thread(target=carry_out, name="headrace-prepare", daemon=True).start()
        except RuntimeError:  # no thread can be started; the next access tries again
            preparations.end(self)

    def _error(self, row: int, reason: str) -> RecordDecodeError:
        record = self._batch[row]
        return RecordDecodeError(TopicPartition(record.topic, record.partition), record.offset, self._field, reason)


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class BatchDeserializer:
    """Decodes keys and values of a batch when a `Record` is asked for them."""

    def __init__(
        self, batch: Batch, deserializers: Mapping[FieldName, Deserializer], to_arrow: Callable[[Batch], Any]
    ) -> None:
        self._columns = {field: DecodedValues(batch, field, used, to_arrow) for field, used in deserializers.items()}

    def prepare(self) -> None:
        for column in self._columns.values():
            column.prepare()

    def key(self, row: int, raw: bytes | None) -> Any:
        return self._get("key", row, raw)

    def value(self, row: int, raw: bytes | None) -> Any:
        return self._get("value", row, raw)

    def _get(self, field: FieldName, row: int, raw: bytes | None) -> Any:
        column = self._columns.get(field)
        if column is None:
            return raw
        value, error = column.get(row, raw)
        if error is not None:
            raise error
        return value


class _NoValue(NamedTuple):
    """Stands for a value that Python cannot have, such as a date in the year 30,000."""

    reason: str


class _Values:
    """A column as Python objects, made some rows at a time: all of them would take much memory, and one by one is slow.
    A value that Python cannot have is a `_NoValue`.

    Threads may use it at the same time (handlers of run()): a window is complete before it is put into the dictionary.
    """

    def __init__(self, column: Any) -> None:
        self._column = column
        self._windows: dict[int, list[Any]] = {}

    def __getitem__(self, row: int) -> Any:
        number, index = divmod(row, _WINDOW)
        made = self._windows.get(number)
        if made is None:
            made = _to_python(self._column.slice(number * _WINDOW, _WINDOW))
            if len(self._windows) >= _WINDOWS:
                self._windows = {}
            self._windows[number] = made
        return made[index]


def _to_python(column: Any) -> list[Any]:
    try:
        return list(column.to_pylist(maps_as_pydicts="strict"))
    except (ArithmeticError, ValueError) as error:
        if len(column) == 1:
            return [_NoValue(f"Python cannot have the value: {error}")]
    return [value for row in range(len(column)) for value in _to_python(column.slice(row, 1))]
