"""Events as bytes."""

from __future__ import annotations

import json

from headrace.ui.streams import encode_event


def test_a_path_that_is_not_utf_8_does_not_end_the_stream() -> None:
    assert encode_event({"rows": {"/data/ä\udcff": 1}}) == 'data: {"rows":{"/data/ä?":1}}\n\n'.encode()


def test_an_event_is_one_line() -> None:
    event = encode_event({"text": "a\nb\r\n"})
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: ")) == {"text": "a\nb\r\n"}
