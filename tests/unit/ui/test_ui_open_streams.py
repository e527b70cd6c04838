"""Which stream makes room for a new one."""

from __future__ import annotations

from headrace.ui.open_streams import CONFIRMED_FOR, OpenStreams


def full(most: int = 3) -> tuple[OpenStreams, list[str]]:
    """Streams a, b, c …, opened a second after each other, and the names of those that were ended."""
    streams, ended = OpenStreams(most), list[str]()
    for at in range(most):
        name = chr(ord("a") + at)
        assert streams.open(name, float(at), lambda name=name: ended.append(name))  # type: ignore[misc]
    return streams, ended


def test_a_stream_that_was_never_confirmed_makes_room() -> None:
    streams, ended = full()
    assert streams.confirm("a", 5.0)
    assert streams.open("d", 6.0, lambda: None)
    assert (ended, len(streams)) == (["b"], 3)
    assert not streams.confirm("b", 7.0)


def test_pages_that_are_read_keep_their_streams() -> None:
    streams, ended = full()
    for name in "abc":
        streams.confirm(name, 10.0)
    assert not streams.open("d", 10.0 + CONFIRMED_FOR, lambda: None)
    assert ended == []
    streams.close("b")
    assert streams.open("d", 11.0, lambda: None)


def test_a_page_that_confirms_no_longer_makes_room_after_those_that_never_did() -> None:
    streams, ended = full()
    streams.confirm("a", 1.0)
    streams.confirm("b", 2.0)
    now = 10.0 + CONFIRMED_FOR
    for name in "de":
        assert streams.open(name, now, lambda: None)
        streams.confirm(name, now)
    assert ended == ["c", "a"]


def test_however_many_streams_are_opened_a_reader_keeps_its_own() -> None:
    streams, ended = full()
    streams.confirm("b", 3.0)
    for number in range(100):
        assert streams.open(f"silent-{number}", 4.0, lambda: None)
    assert "b" not in ended
    assert len(streams) == 3
