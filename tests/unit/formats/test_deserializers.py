"""`value_deserializer` and `key_deserializer`: `record.value` and `record.key` are decoded on access, once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.config.consumer import ConsumerConfig
from headrace.errors import ConfigError, RecordDecodeError, SchemaRegistryError
from headrace.formats import Avro, Json, Protobuf, Source
from headrace.records import Records, decode, deserialized
from support.brokers.record_batches import Entry, encode_batch
from support.formats.registry import MemoryRegistry


def batch(*values, key=b"k"):
    data = encode_batch([Entry(key, value) for value in values], base_offset=10)
    return decode(data, topic="readings", partition=1, position=0)


def test_a_function_is_called_once_for_each_record_that_is_asked():
    calls = []

    def load(raw):
        calls.append(raw)
        return json.loads(raw)

    records = Records([deserialized(batch(b'{"a": 1}', b'{"a": 2}', None), load, bytes.decode)])
    assert len(records) == 3
    assert calls == []
    second = records[1]
    assert second.value is second.value
    assert [record.value for record in records] == [{"a": 1}, {"a": 2}, None]
    assert calls == [b'{"a": 2}', b'{"a": 1}']
    assert second.key == "k"
    assert (second.raw_key, second.raw_value) == (b"k", b'{"a": 2}')


def test_a_format_decodes_slices_too():
    values = [b'{"x": %d}' % number for number in range(3000)]
    whole = deserialized(batch(*values), Json("x int"), None)
    records = Records([whole.slice(1000, 1000), whole.slice(2000, 1000)])
    assert [record.value["x"] for record in records] == [*range(1000, 3000)]
    assert [record.value["x"] for record in reversed(list(records))] == [*range(2999, 999, -1)]
    assert {record.key for record in records} == {b"k"}
    shared = Records([whole.between(12, 13, 2)])
    assert [(record.value["x"], record.delivery_count) for record in shared] == [(2, 2), (3, 2)]


@pytest.mark.parametrize("used", [json.loads, Json("int")])
def test_a_bad_value_is_named_and_does_not_stop_the_others(used):
    first, second, third = Records([deserialized(batch(b"1", b"no", b"3"), used, None)])
    assert (first.value, third.value) == (1, 3)
    for _ in range(2):
        with pytest.raises(RecordDecodeError, match="cannot decode the value at offset 11 of readings-1: "):
            _ = second.value
    assert second.raw_value == b"no"


def test_columns_pickles_and_texts_have_the_bytes():
    records = Records([deserialized(batch(b"1"), json.loads, bytes.decode)])
    record = records[0]
    assert records.to_arrow()["value"].to_pylist() == [b"1"]
    assert next(records.rows())["value"] == b"1"
    assert 'value=b"1"' in repr(record)
    copy = pickle.loads(pickle.dumps(record))
    assert copy == record
    assert copy.value == b"1"


def test_schemas_are_fetched_before_a_value_is_needed():
    registry = MemoryRegistry()
    schema_id = registry.add("readings-value", '"int"')
    cell = b"\0" + schema_id.to_bytes(4, "big") + b"\x0e"
    record = Records([deserialized(batch(cell), Avro(registry), None)])[0]
    registry.is_away = True
    assert record.value == 7
    late = Records([deserialized(batch(cell), Avro(registry), None)])[0]
    with pytest.raises(SchemaRegistryError):
        _ = late.value
    registry.is_away = False
    assert late.value == 7


@pytest.mark.parametrize("used", [Avro, Protobuf])
def test_an_unknown_id_is_not_asked_for_when_a_value_is_needed(used):
    """Records are accessed on an event loop, where nobody must wait for a registry."""
    registry = MemoryRegistry(used.__name__.upper())
    known = registry.add(
        "readings-value", {"Avro": '"int"', "Protobuf": 'syntax = "proto3"; message M {}'}[used.__name__]
    )
    cells = [b"\0" + schema_id.to_bytes(4, "big") + b"\0" for schema_id in (known, 99)]
    first, second = Records([deserialized(batch(*cells), used(registry), None)])
    asked = registry.asked.total()
    assert first.value in (0, {})
    with pytest.raises(RecordDecodeError, match="no schema with id 99"):
        _ = second.value
    assert registry.asked.total() == asked


FORMATS = {Avro: '"int"', Protobuf: 'syntax = "proto3"; message M {}', Json: '{"type": "integer"}'}


def _typed_cell(used) -> tuple[MemoryRegistry, bytes]:
    registry = MemoryRegistry(used.__name__.upper())
    schema_id = registry.add("readings-value", FORMATS[used])
    return registry, b"\0" + schema_id.to_bytes(4, "big") + (b"0" if used is Json else b"\0")


@pytest.mark.parametrize("used", FORMATS)
def test_a_value_does_not_wait_for_the_registry_on_an_event_loop(used):
    registry, cell = _typed_cell(used)
    registry.is_away = True
    record = Records([deserialized(batch(cell), used(registry), None)])[0]
    ask, answer, asked_by = registry._ask, threading.Event(), []

    def ask_slowly(*what):
        asked_by.append(threading.current_thread().name)
        assert answer.wait(10)
        ask(*what)

    registry._ask = ask_slowly

    async def main():
        for _ in range(3):
            with pytest.raises(SchemaRegistryError, match="cannot be reached"):
                _ = record.value
        registry.is_away = False
        answer.set()
        await asyncio.to_thread(_join_preparations)
        return record.value

    assert asyncio.run(main()) in (0, {})
    assert set(asked_by) == {"headrace-prepare"}
    assert Counter(asked_by).total() <= 2  # the subject, and the id: three accesses have started one thread


def _join_preparations():
    for thread in threading.enumerate():
        if thread.name == "headrace-prepare":
            thread.join(10)


def test_a_forked_child_can_ask_a_registry_while_the_threads_of_its_parent_use_all_the_room():
    registry, cell = _typed_cell(Avro)
    registry.is_away = True
    records = [Records([deserialized(batch(cell), Avro(registry), None)])[0] for _ in range(6)]
    ask, answer, asked = registry._ask, threading.Event(), threading.Semaphore(0)

    def ask_slowly(*what):
        asked.release()
        assert answer.wait(30)
        ask(*what)

    async def access(*some):
        for each in some:
            with pytest.raises(SchemaRegistryError, match="cannot be reached"):
                _ = each.value

    registry._ask = ask_slowly
    asyncio.run(access(*records))
    for _ in range(4):
        assert asked.acquire(timeout=10)
    assert not asked.acquire(timeout=0.05), "four threads at a time"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            registry._ask, registry.is_away = ask, False
            chosen = records[0], records[-1]  # one that the parent is preparing, and one that found no room
            for each in chosen:
                with contextlib.suppress(SchemaRegistryError):  # unless its thread has been quick
                    asyncio.run(_values(each))
            _join_preparations()
            os._exit(7 if asyncio.run(_values(*chosen)) == [0, 0] else 1)
        finally:
            os._exit(2)
    answer.set()
    _join_preparations()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


async def _values(*records):
    return [each.value for each in records]


def test_a_value_can_be_awaited_on_a_thread_while_the_registry_is_away():
    registry, cell = _typed_cell(Avro)
    registry.is_away = True
    record = Records([deserialized(batch(cell), Avro(registry), None)])[0]

    async def main():
        with pytest.raises(SchemaRegistryError):
            await asyncio.to_thread(getattr, record, "value")
        registry.is_away = False
        return await asyncio.to_thread(getattr, record, "value")

    assert asyncio.run(main()) == 0


@pytest.mark.parametrize("used", FORMATS)
def test_a_prepared_value_does_not_wait_while_another_subject_is_fetched(used):
    registry, cell = _typed_cell(used)
    made = used(registry)
    record = Records([deserialized(batch(cell), made, None)])[0]
    asking, answer = threading.Event(), threading.Event()
    ask = registry._ask

    def ask_slowly(*what):
        asking.set()
        assert answer.wait(10), "the value has waited"
        ask(*what)

    registry._ask = ask_slowly
    registry.subjects["others-value"] = registry.subjects["readings-value"]
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(made.arrow_type, Source("others"))
        assert asking.wait(10)
        assert record.value in (0, {})
        answer.set()
        other.result(10)


def test_the_settings_take_formats_and_functions():
    servers = {"bootstrap.servers": "localhost:9092"}
    config = ConsumerConfig.parse({**servers, "value.deserializer": json.loads}, key_deserializer=Json("int"))
    assert config.value_deserializer is json.loads
    with pytest.raises(ConfigError, match=r"value\.deserializer='json': must be a format"):
        ConsumerConfig.parse(servers, value_deserializer="json")


def test_only_whole_batches_are_deserialized():
    with pytest.raises(ValueError, match="whole batch"):
        deserialized(batch(b"1", b"2").slice(1, 1), json.loads, None)
