"""Decoding ShareFetch responses: only acquired records are returned, gaps differ from damage, nothing is copied."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headrace import Record
from headrace._aio.share.decode import Decoded, decode_arrival
from headrace._machines.share.acquired import AcquiredRecords, AcquisitionLock
from headrace._machines.share.responses import AcquiredData
from headrace.config.consumer import ConsumerConfig
from headrace.records import Batch, decode
from support.brokers.record_batches import ABORT, Entry, encode_batch, encode_marker
from support.harness.share_broker_model import TP, tip

CONFIG = ConsumerConfig.parse(bootstrap_servers="b:1")


def batch(first: int, count: int = 5, **options: object) -> bytes:
    entries = [Entry(value=b"%d" % (first + number)) for number in range(count)]
    return encode_batch(entries, base_offset=first, **options)  # type: ignore[arg-type]


def decoded(data: bytes | None, *acquired: tuple[int, int, int]) -> Decoded:
    view = None if data is None else memoryview(data)
    return decode_arrival(AcquiredData(AcquiredRecords(TP, tip(0), 1), view, acquired, AcquisitionLock(1.0)), CONFIG)


def shown(found: Decoded) -> list[tuple[int, int | None]]:
    return [(record.offset, record.delivery_count) for each in found.batches for record in each]


def test_records_that_were_not_acquired_are_not_decoded() -> None:
    """Before, between and after acquired ranges, as in KIP-932's example and in redeliveries."""
    data = batch(0) + batch(5) + batch(10)
    found = decoded(data, (1, 2, 2), (4, 4, 2), (10, 13, 1))
    assert shown(found) == [(1, 2), (2, 2), (4, 2), (10, 1), (11, 1), (12, 1), (13, 1)]
    assert (found.gaps, found.damaged, found.error) == ([], [], None)
    assert [each.runs() for each in found.batches] == [[(1, 2)], [(4, 4)], [(10, 13)]]


def test_acquired_offsets_without_a_record_are_gaps() -> None:
    compacted = encode_batch(
        [Entry(value=b"a", offset_delta=1), Entry(value=b"b", offset_delta=3)], last_offset_delta=4
    )
    data = compacted + encode_marker(ABORT, base_offset=5, producer_id=7)
    found = decoded(data, (0, 5, 1))
    assert shown(found) == [(1, 1), (3, 1)]
    assert found.gaps == [(0, 0), (2, 2), (4, 5)]
    assert found.batches[0].runs() == [(1, 1), (3, 3)]


def test_acquired_offsets_without_any_record_are_gaps() -> None:
    assert decoded(None, (3, 4, 1)).gaps == [(3, 4)]


def test_damaged_batches_of_a_share_response_are_skipped_and_reported() -> None:
    data = batch(0) + batch(5, crc=1) + batch(10) + batch(15, crc=1)
    found = decoded(data, (2, 17, 1))
    assert [offset for offset, _ in shown(found)] == [2, 3, 4, *range(10, 15)]
    assert found.damaged == [(5, 9), (15, 17)]
    assert found.gaps == []
    assert found.error is not None
    assert (found.error.partition, found.error.offset) == (TP, 5)


def test_a_damaged_first_batch_of_a_share_response_is_skipped_and_reported() -> None:
    found = decoded(batch(0, crc=1) + batch(5), (0, 9, 3))
    assert shown(found) == [(offset, 3) for offset in range(5, 10)]
    assert found.damaged == [(0, 4)]
    assert found.error is not None
    assert "The batch was rejected" in str(found.error)


def test_a_share_response_is_decoded_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_batch(data: memoryview, **settings: Any) -> Batch:
        return decode(data[: 12 + int.from_bytes(data[8:12], "big")], **settings)

    monkeypatch.setattr("headrace._aio.share.decode.decode", one_batch)
    found = decoded(batch(0) + batch(5) + batch(10), (2, 13, 1))
    assert [offset for offset, _ in shown(found)] == list(range(2, 14))
    assert (found.damaged, found.error) == ([], None)


def test_a_share_record_has_its_delivery_count() -> None:
    whole = decode(batch(0), topic="t", partition=0, position=0)
    assert whole.delivery_count is None
    assert whole[0].delivery_count is None
    part = whole.between(1, 3, 4)
    assert [record.offset for record in part.slice(1, 5)] == [2, 3]
    assert {record.delivery_count for record in part.slice(1, 5)} == {4}
    assert pickle.loads(pickle.dumps(part[0])) == part[0]
    assert part[0] != whole[1]
    assert "delivery_count=4" in repr(part[0])
    assert Record("t", 0, 5, delivery_count=2).delivery_count == 2


@pytest.mark.parametrize(
    ("first", "last", "rows"), [(-5, -1, []), (0, 0, [0]), (3, 99, [3, 4]), (5, 9, []), (4, 2, [])]
)
def test_a_batch_can_be_cut_by_offsets(first: int, last: int, rows: list[int]) -> None:
    part = decode(batch(0), topic="t", partition=0, position=0).between(first, last, 1)
    assert [record.offset for record in part] == rows
    assert part.runs() == ([(rows[0], rows[-1])] if rows else [])
