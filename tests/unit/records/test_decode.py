"""`decode` and `next_offset` against an encoder that is independent of the kernel."""

from __future__ import annotations

import array
import pickle
import re
import struct
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import Batch, DecodeError, Record, decode, decode_all, next_offset
from support.brokers.record_batches import ABORT, COMMIT, Entry, encode_batch, encode_marker


def read(data, position=0, **options) -> Batch:
    batch = decode(data, topic="orders", partition=3, position=position, **options)
    assert batch.next_offset == next_offset(data, position)
    return batch


def entries(count: int) -> list[Entry]:
    return [Entry(key=b"k%d" % i, value=b"v%d" % i) for i in range(count)]


payloads = st.none() | st.binary(max_size=30) | st.binary(min_size=8_200, max_size=8_300)
headers = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=5)), max_size=3)


@st.composite
def logs(draw):
    """Batches as tuples (bytes, records, next offset)."""
    log = []
    offset = draw(st.integers(0, 10**12))
    for _ in range(draw(st.integers(0, 4))):
        base = offset + draw(st.integers(0, 3))
        delta = -1
        written = []
        for _ in range(draw(st.integers(0, 6))):
            delta += draw(st.integers(1, 100))
            written.append(
                Entry(
                    key=draw(payloads),
                    value=draw(payloads),
                    headers=tuple(draw(headers)),
                    offset_delta=delta,
                    timestamp_delta=draw(st.integers(-(10**6), 10**12)),
                )
            )
        last = max(delta, 0) + draw(st.integers(0, 3))
        base_timestamp = draw(st.integers(-1, 2 * 10**12))
        log_append_time = draw(st.booleans())
        epoch = draw(st.integers(-1, 5))
        data = encode_batch(
            written,
            base_offset=base,
            last_offset_delta=last,
            base_timestamp=base_timestamp,
            max_timestamp=77,
            leader_epoch=epoch,
            compressed=draw(st.booleans()),
            log_append_time=log_append_time,
        )
        records = [
            Record(
                "orders",
                3,
                base + e.offset_delta,
                timestamp=77 if log_append_time else base_timestamp + e.timestamp_delta,
                timestamp_type=int(log_append_time),
                key=e.key,
                value=e.value,
                headers=e.headers,
                leader_epoch=epoch,
            )
            for e in written
        ]
        offset = base + last + 1
        log.append((data, records, offset))
    return log


@given(logs(), st.integers(0, 300), st.integers(0, 80))
def test_encoded_batches_are_decoded_as_written(log, skipped, fragment):
    data = b"".join(data for data, _, _ in log) + encode_batch(entries(9), base_offset=10**13)[:fragment]
    start = log[0][2] - 300 if log else 0
    position = max(start, 0) + skipped
    batch = read(data, position)
    expected = [r for _, records, _ in log for r in records if r.offset >= position]
    assert list(batch) == expected
    assert batch.next_offset == max([position, *(end for _, _, end in log)])
    assert [(r.key, r.value, r.headers) for r in batch] == [(r.key, r.value, r.headers) for r in expected]


@given(logs(), st.data())
def test_damaged_batches_raise_or_decode_only_records_that_were_written(log, data):
    good = b"".join(data for data, _, _ in log)
    if not good:
        return
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    records = {r.offset: r for _, records, _ in log for r in records}
    try:
        batch = decode(damaged, topic="orders", partition=3, position=0)
    except DecodeError:
        return
    # The checksum does not cover offsets and epochs. All other returned values were written.
    contents = [(r.key, r.value, r.headers, r.timestamp) for r in records.values()]
    assert [(r.key, r.value, r.headers, r.timestamp) for r in batch] == contents[: len(batch)]


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_raise_decode_error(data):
    for check_crcs in (True, False):
        try:
            batch = decode(data, topic="t", partition=0, position=5, check_crcs=check_crcs)
        except DecodeError:
            continue
        assert next_offset(data, 5) >= batch.next_offset >= 5


def test_a_decode_error_names_topic_partition_offset_and_cause():
    bad = encode_batch(entries(2), base_offset=40, crc=1)
    with pytest.raises(DecodeError, match=r"orders-3 at offset 40: CRC-32C mismatch") as raised:
        read(bad, 41)
    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("orders", 3, 40)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.topic, again.partition, again.offset) == (str(error), "orders", 3, 40)


def test_a_damaged_batch_raises_only_after_the_good_ones_before_it():
    data = encode_batch(entries(2)) + encode_batch(entries(2), base_offset=2, crc=1)
    batch = decode(data, topic="t", partition=0, position=0)
    assert [r.offset for r in batch] == [0, 1]
    assert batch.next_offset == 2
    with pytest.raises(DecodeError, match="offset 2"):
        decode(data, topic="t", partition=0, position=2)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_by_name(magic):
    with pytest.raises(DecodeError, match=f"message format v{magic} is not supported"):
        read(encode_batch(entries(1), magic=magic))


def test_decoding_without_check_crcs_accepts_a_wrong_checksum():
    assert len(read(encode_batch(entries(2), crc=1), check_crcs=False)) == 2


def test_a_batch_that_decompresses_beyond_the_limit_is_refused():
    data = encode_batch([Entry(value=bytes(1_000_000))], compressed=True)
    assert len(data) < 2_000
    assert len(read(data)) == 1
    with pytest.raises(DecodeError, match="more than the limit of 999999 bytes"):
        decode(data, topic="t", partition=0, position=0, max_batch_bytes=999_999)


def test_read_committed_excludes_aborted_transactions():
    def part(base, producer):
        return encode_batch(entries(2), base_offset=base, producer_id=producer, transactional=True)

    data = b"".join(
        [
            part(0, 11),
            part(2, 22),
            encode_marker(ABORT, base_offset=4, producer_id=11),
            part(5, 11),
            encode_marker(COMMIT, base_offset=7, producer_id=22),
            encode_marker(COMMIT, base_offset=8, producer_id=11),
        ]
    )
    aborted = [(99, 3), (11, 0)]
    committed = read(data, aborted=aborted, read_committed=True)
    assert [r.offset for r in committed] == [2, 3, 5, 6]
    assert committed.next_offset == 9
    assert [r.offset for r in read(data, aborted=aborted)] == [0, 1, 2, 3, 5, 6]


def test_a_batch_of_markers_has_no_records_and_a_next_offset():
    batch = read(encode_marker(COMMIT, base_offset=8, producer_id=11), 8)
    assert (len(batch), batch.next_offset, batch.leader_epoch) == (0, 9, 7)
    assert (batch.first_offset, batch.last_offset) == (None, None)


def test_an_incomplete_batch_has_no_records():
    data = encode_batch(entries(5))
    for cut in (0, 5, 11, 12, 16, 60, 61, len(data) - 1):
        batch = read(data[:cut], 5)
        assert (len(batch), batch.next_offset, batch.leader_epoch) == (0, 5, -1)


def test_header_names_that_are_not_utf8_are_decoded_with_replacements():
    data = encode_batch([Entry(headers=((b"a\xffb", b"\xff"),))])
    assert read(data)[0].headers == (("a\ufffdb", b"\xff"),)


DATA = encode_batch(entries(3))


@pytest.mark.parametrize(
    "buffer",
    [
        DATA,
        bytearray(DATA),
        memoryview(DATA),
        memoryview(b"??" + DATA + b"!")[2:-1],
        memoryview(bytearray(DATA)).toreadonly(),
        array.array("B", DATA),
    ],
    ids=["bytes", "bytearray", "memoryview", "slice", "readonly", "array"],
)
def test_any_contiguous_buffer_can_be_decoded(buffer):
    assert [r.value for r in read(buffer)] == [b"v0", b"v1", b"v2"]


def test_decode_refuses_objects_that_are_no_contiguous_buffer():
    with pytest.raises(BufferError):
        decode(memoryview(DATA)[::2], topic="t", partition=0, position=0)
    for other in ("text", None, array.array("i", [1])):
        with pytest.raises((TypeError, BufferError)):
            decode(other, topic="t", partition=0, position=0)


def test_a_decoded_buffer_can_be_reused_at_once():
    buffer = bytearray(DATA)
    batch = read(buffer)
    buffer[:] = bytes(len(buffer))
    buffer.clear()  # Raises BufferError while the buffer is exported.
    assert [r.value for r in batch] == [b"v0", b"v1", b"v2"]


def test_next_offset_stops_at_an_impossible_batch_header():
    bad = bytearray(encode_batch(entries(2), base_offset=2))
    bad[8:12] = struct.pack(">i", -1)
    assert next_offset(DATA + bad, 0) == 3
    assert next_offset(bad, 7) == 7


def test_several_partitions_are_decoded_in_one_call():
    good = encode_batch(entries(40))
    open_ended = encode_batch(entries(2), base_offset=7, producer_id=1, transactional=True)
    damaged = bytearray(encode_batch(entries(1), base_offset=5))
    damaged[-1] ^= 1
    found = decode_all(
        [
            (good, "orders", 3, 10, []),
            (memoryview(damaged), "orders", 4, 5, ()),
            (b"", "refunds", 0, 8, []),
            (open_ended, "refunds", 1, 7, ((1, 7),)),
        ],
        read_committed=True,
        check_crcs=True,
        max_batch_bytes=2**20,
        max_total_bytes=2**20,
    )
    first, bad, empty, aborted = found
    assert list(first) == list(read(good, 10))
    assert (bad.topic, bad.partition, bad.offset) == ("orders", 4, 5)
    with pytest.raises(DecodeError, match=re.escape(str(bad))):
        decode(damaged, topic="orders", partition=4, position=5)
    assert (empty.topic, empty.partition, len(empty), empty.next_offset) == ("refunds", 0, 0, 8)
    assert (len(aborted), aborted.next_offset) == (0, 9)
    assert decode_all([], read_committed=False, check_crcs=True, max_batch_bytes=1, max_total_bytes=1) == []


@pytest.mark.parametrize(("total", "ends"), [(0, [None] * 3), (1, [1, None, None]), (2500, [2, 1, None])])
def test_decoding_stops_at_its_limit_of_bytes(total: int, ends: list[int | None]):
    """A batch is decoded if it fits, and the first one in any case. Later batches are not touched."""
    thousand = [Entry(value=bytes(1000))]
    data = encode_batch(thousand) + encode_batch(thousand, base_offset=1) + encode_batch(thousand, base_offset=2)
    found = decode_all(
        [(data, "t", number, 0, []) for number in range(3)],
        read_committed=False,
        check_crcs=True,
        max_batch_bytes=2**20,
        max_total_bytes=total,
    )
    assert [None if each is None else each.next_offset for each in found] == ends


def test_decode_all_refuses_objects_that_are_no_buffer():
    with pytest.raises(TypeError):
        decode_all([(7, "t", 0, 0, [])], read_committed=False, check_crcs=True, max_batch_bytes=1, max_total_bytes=1)


def test_other_threads_run_while_a_batch_is_decoded():
    one = encode_batch([Entry(value=bytes(1000))] * 200, compressed=True)
    data = b"".join(struct.pack(">q", 200 * i) + one[8:] for i in range(200))

    def another_runs():
        times = {}

        def work():
            times["start"] = time.perf_counter()
            batch = decode(data, topic="t", partition=0, position=0)
            times["end"] = time.perf_counter()
            times["count"] = len(batch)

        thread = threading.Thread(target=work)
        ticks = []
        thread.start()
        while thread.is_alive():
            ticks.append(time.perf_counter())
            time.sleep(0)  # yield the CPU
        thread.join()
        assert times["count"] == 40_000
        tenth = (times["end"] - times["start"]) / 10
        return any(times["start"] + tenth < tick < times["end"] - tenth for tick in ticks)

    assert any(another_runs() for _ in range(5)), "other processes may take the CPU in one round, not in all"


def test_a_decoded_record_has_the_fields_of_its_encoded_entry():
    """The encoder and `Record`'s constructor agree, so the comparisons above are meaningful."""
    entry = Entry(key=b"k", value=None, headers=(("h", None), ("h", b"")), timestamp_delta=5)
    record = read(encode_batch([replace(entry, offset_delta=4)], base_offset=100))[0]
    assert (record.topic, record.partition, record.offset) == ("orders", 3, 104)
    assert (record.timestamp, record.timestamp_type, record.leader_epoch) == (1005, 0, 7)
    assert (record.key, record.value, record.headers) == (b"k", None, (("h", None), ("h", b"")))
    assert record.lane is None
