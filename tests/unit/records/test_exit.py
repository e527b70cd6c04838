"""A process exits while a daemon thread runs a user's code below a native frame."""

from __future__ import annotations

import pytest

from support.harness.exits import exit_codes

TASKS = {
    "deserializer": """
from headrace.records import decode, deserialized
from support.brokers.record_batches import Entry, encode_batch

batch = deserialized(decode(encode_batch([Entry(b"k", b"v")]), topic="t", partition=0, position=0), wait, None)

def task():
    batch[0].value
""",
    "reader of Arrow batches": """
import pyarrow
from headrace._record_batch import ColumnEncoder

class Reader:
    schema = pyarrow.schema([("value", pyarrow.binary())])
    read_next_batch = wait

def task():
    ColumnEncoder(Reader(), default_timestamp=0).next_topic()
""",
}


@pytest.mark.parametrize("users", list(TASKS))
def test_a_process_exits_while_a_daemon_thread_blocks_in_a(users):
    assert exit_codes(TASKS[users]) == [(0, "")] * 4
