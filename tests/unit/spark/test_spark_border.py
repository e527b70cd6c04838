"""Errors of format("headrace") in Spark: their tracebacks, and how soon they are raised."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.errors import HeadraceError, NetworkError, RequestTimeoutError
from headrace.spark import offset_lookup as logs
from headrace.spark.error_boundary import FailedStreamReader, error_boundary
from headrace.spark.options.parsers import OptionError
from headrace.spark.source import HeadraceSource
from headrace.spark.versions import ReadMaxRows


@error_boundary
class Failing(DataSourceReader):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def _fail(self) -> None:
        try:
            raise OSError("the first cause")
        except OSError as error:
            raise self._error from error

    def partitions(self) -> list[InputPartition]:
        self._fail()
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield "a batch"
        self._fail()


def text_of(error: BaseException) -> str:
    """The text that Spark shows."""
    return "".join(traceback.TracebackException.from_exception(error).format())


class TestTracebacks:
    @pytest.mark.parametrize("error", [HeadraceError("what is wrong"), TimeoutError("what is wrong")])
    def test_tracebacks_of_headrace_errors_are_short(self, error: Exception) -> None:
        with pytest.raises(type(error)) as caught:
            Failing(error).partitions()
        assert "the first cause" not in text_of(caught.value)
        assert "_fail" not in text_of(caught.value)

    def test_tracebacks_of_headrace_errors_in_tasks_are_short(self) -> None:
        found = Failing(HeadraceError("what is wrong")).read(InputPartition(0))
        assert next(found) == "a batch"
        with pytest.raises(HeadraceError) as caught:
            next(found)
        assert "the first cause" not in text_of(caught.value)

    def test_tracebacks_of_bugs_are_whole(self) -> None:
        with pytest.raises(KeyError) as caught:
            Failing(KeyError("unexpected")).partitions()
        assert "the first cause" in text_of(caught.value)
        assert "_fail" in text_of(caught.value)


class TestStreamReader:
    """PySpark would hide an error of streamReader() behind its own, so the reader raises it later."""

    @pytest.mark.parametrize(
        ("call", "args"),
        [
            ("initialOffset", ()),
            ("getDefaultReadLimit", ()),
            ("prepareForTriggerAvailableNow", ()),
            ("latestOffset", ({}, ReadMaxRows(1))),
            ("partitions", ({}, {})),
        ],
    )
    def test_a_stream_reader_raises_wrong_options_at_its_first_call(self, call: str, args: tuple[Any, ...]) -> None:
        source = HeadraceSource({"kafka.bootstrap.servers": "localhost:1"})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, FailedStreamReader)
        with pytest.raises(OptionError, match="Set one of these options"):
            getattr(reader, call)(*args)
        reader.stop()  # PySpark calls it after the error


class TestNoBroker:
    """Errors before the first response of a broker."""

    @pytest.fixture
    def listening(self) -> Iterator[int]:
        """A port that accepts connections and never responds."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield server.getsockname()[1]

    @pytest.fixture
    def closed(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port: int = server.getsockname()[1]
        return port

    def planned(self, ports: list[int], **more: str) -> tuple[HeadraceError, float]:
        servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        source = HeadraceSource({"kafka.bootstrap.servers": servers, "subscribe": "t", **more})
        began = time.monotonic()
        with pytest.raises(HeadraceError) as caught:
            source.reader(source.schema()).partitions()
        return caught.value, time.monotonic() - began

    def test_servers_that_all_refuse_fail_soon(self, closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        assert logs.CONNECT_TIMEOUT == 15
        monkeypatch.setattr(logs, "CONNECT_TIMEOUT", 0.5)
        error, took = self.planned([closed])
        assert isinstance(error, NetworkError)
        assert f"Cannot connect to any server of kafka.bootstrap.servers=127.0.0.1:{closed}" in str(error)
        assert took < 10, "default.api.timeout.ms is a minute, and fetchOffset.numRetries is 3"

    def test_servers_that_refuse_are_retried_for_as_long_as_the_options_say(
        self, closed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "CONNECT_TIMEOUT", 0.1)
        retries = {"fetchOffset.numRetries": "4", "fetchOffset.retryIntervalMs": "500"}
        _, took = self.planned([closed], **retries)
        assert took > 1

    def test_a_server_that_only_takes_its_time_is_waited_for_in_spark(
        self, closed: int, listening: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "CONNECT_TIMEOUT", 0.1)
        error, took = self.planned([closed, listening], **{"kafka.default.api.timeout.ms": "1500"})
        assert isinstance(error, RequestTimeoutError)
        assert took > 1, "the server gets all of default.api.timeout.ms"
