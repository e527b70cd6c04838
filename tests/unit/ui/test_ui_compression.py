"""Responses with gzip: what a browser reads of them at any time."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from headrace.ui.compression import StreamCompressor, accepts_gzip, compressed


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("gzip, deflate, br", True),
        ("GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0, *", False),
        ("identity", False),
        ("", False),
        ("xgzip", False),
    ],
)
def test_gzip_is_used_if_it_is_accepted(header: str, accepts: bool) -> None:
    assert accepts_gzip({"accept-encoding": header} if header else {}) is accepts


def test_a_body_is_compressed_if_that_makes_it_smaller() -> None:
    body = b"a row of a table, " * 100
    found = compressed(body)
    assert found is not None
    assert len(found) < len(body) / 5
    assert gzip.decompress(found) == body
    assert compressed(b"short") is None


def test_every_event_of_a_stream_can_be_read_when_it_arrives() -> None:
    compressor, reader = StreamCompressor(), zlib.decompressobj(31)
    sent = plain = 0
    for number in range(50):
        rows = {f"group:billing-{each}": {"lag": number * each, "seconds": 0.5} for each in range(40)}
        event = json.dumps(rows).encode()
        data = compressor.add(event)
        assert reader.decompress(data) == event
        sent, plain = sent + len(data), plain + len(event)
    assert sent < plain / 4
    reader.decompress(compressor.end())
    assert reader.eof
