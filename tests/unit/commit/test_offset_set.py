"""OffsetSet against a plain set of integers; its text form with size limits, damage and foreign texts."""

from __future__ import annotations

import operator
import pickle
import random
import zlib
from base64 import b85encode
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace._machines.commit.offset_set import OffsetSet, Range, note_in, splice

STEADY = settings(deadline=None, derandomize=True, max_examples=100)

# The model covers offsets below END. Bounds stay well below END, so that open offsets beyond the frontier count too.
END = 48
RANGES = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))
SETS = st.builds(OffsetSet, st.integers(0, 40), st.lists(RANGES, max_size=8))
LAST = 2**63 - 1


def done(offsets: OffsetSet) -> set[int]:
    """Check each offset with `in`, so that no set operation is used to test another."""
    return {offset for offset in range(END) if offset in offsets}


def covered(ranges: list[Range] | tuple[Range, ...]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def assert_tidy(ranges: list[Range] | tuple[Range, ...]) -> None:
    """The ranges are ascending and non-empty, and none touches the next."""
    ends = [end for pair in ranges for end in pair]
    assert ends == sorted(set(ends))


def with_hole(offsets: OffsetSet, start: int, end: int) -> OffsetSet:
    """`offsets` without [start, end), as `Completion` marks redelivered offsets."""
    bounds = list(offsets.bounds)
    if start < end:
        first, last, between = splice(bounds, start, end, done=False)
        bounds[first:last] = between
    return OffsetSet.from_bounds(bounds)


def assert_canonical(offsets: OffsetSet) -> None:
    assert_tidy([*offsets.holes, (offsets.frontier, LAST)])
    assert OffsetSet(offsets.frontier, offsets.holes).bounds == offsets.bounds


@STEADY
@given(st.integers(0, 40), st.lists(RANGES, max_size=8))
def test_a_set_can_be_made_of_any_holes(frontier: int, holes: list[Range]) -> None:
    made = OffsetSet(frontier, holes)
    assert done(made) == set(range(frontier)) - covered(holes)
    assert_canonical(made)
    assert done(made) == set(range(made.frontier)) - covered(made.holes)
    assert made.low == min(set(range(END)) - done(made))
    assert made.frontier == max(done(made), default=-1) + 1
    assert made.count_open == made.frontier - len(done(made))


@STEADY
@given(SETS, RANGES)
def test_marking_a_range_adds_or_removes_its_offsets(offsets: OffsetSet, span: Range) -> None:
    before = done(offsets)
    more, less = offsets.with_done(*span), with_hole(offsets, *span)
    assert done(more) == before | covered([span])
    assert done(less) == before - covered([span])
    assert_canonical(more)
    assert_canonical(less)
    assert done(offsets) == before


@STEADY
@given(SETS, RANGES)
def test_open_ranges_within_a_window_are_listed(offsets: OffsetSet, span: Range) -> None:
    found = offsets.open(*span)
    assert covered(found) == covered([span]) - done(offsets)
    assert_tidy(found)


@STEADY
@given(SETS, SETS)
def test_two_sets_are_combined_and_compared_as_sets_of_integers(left: OffsetSet, right: OffsetSet) -> None:
    assert done(left | right) == done(left) | done(right)
    assert done(left & right) == done(left) & done(right)
    assert covered(left - right) == done(left) - done(right)
    assert (left <= right) == (done(left) <= done(right))
    assert (left >= right) == (done(left) >= done(right))
    assert (left == right) == (done(left) == done(right))
    assert_canonical(left | right)
    assert_canonical(left & right)
    assert_tidy(left - right)


@STEADY
@given(SETS, st.lists(RANGES, max_size=6))
def test_whoever_did_it_in_whatever_order_it_is_the_same_value(offsets: OffsetSet, spans: list[Range]) -> None:
    forwards = backwards = offsets
    for start, end in spans:
        forwards = forwards.with_done(start, end)
    for start, end in reversed(spans):
        backwards = backwards.with_done(start, end)
    assert forwards == backwards
    assert hash(forwards) == hash(backwards)
    assert eval(repr(forwards)) == forwards
    assert pickle.loads(pickle.dumps(forwards)) == forwards
    assert OffsetSet.from_bounds(forwards.bounds) == forwards


def test_no_holes_is_one_integer() -> None:
    assert OffsetSet(5).bounds == (5,)
    assert repr(OffsetSet(5)) == "OffsetSet(5)"
    assert repr(OffsetSet(130, [(70, 120)])) == "OffsetSet(130, [(70, 120)])"
    assert not hasattr(OffsetSet(5), "__dict__")


def test_a_hole_at_the_frontier_lowers_it() -> None:
    assert OffsetSet(120, [(70, 120)]) == OffsetSet(70)
    assert OffsetSet(70).with_done(120, 130) == OffsetSet(130, [(70, 120)])


def test_nothing_below_zero_is_done() -> None:
    assert 0 not in OffsetSet(0)
    assert -1 not in OffsetSet(5)


def test_a_set_of_nothing_is_not_false() -> None:
    """Otherwise `if known:` would treat a partition committed at 0 as one without a commit."""
    assert OffsetSet(0)


def test_retention_and_truncation_are_a_union_and_an_intersection() -> None:
    offsets = OffsetSet(200, [(70, 80), (100, 120)])
    assert offsets | OffsetSet(110) == OffsetSet(200, [(110, 120)])
    assert offsets & OffsetSet(110) == OffsetSet(100, [(70, 80)])


@pytest.mark.parametrize("span", [(-1, 5), (5, 4), (-3, -2), (0, LAST + 1)])
def test_an_offset_set_refuses_what_is_no_range(span: Range) -> None:
    offsets = OffsetSet(10, [(3, 5)])
    for call in (offsets.with_done, offsets.open):
        with pytest.raises(ValueError, match="not a range of offsets"):
            call(*span)
    with pytest.raises(ValueError, match="not a range of offsets"):
        OffsetSet(10, [span])


@pytest.mark.parametrize("frontier", [-1, LAST + 1])
def test_an_offset_set_refuses_what_is_no_frontier(frontier: int) -> None:
    with pytest.raises(ValueError, match="not a range of offsets"):
        OffsetSet(frontier)


@pytest.mark.parametrize("bounds", [(), (1, 2), (1, 1, 2), (3, 2, 5), (-1,), (1, 2, LAST + 1)])
def test_an_offset_set_refuses_what_are_no_bounds(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"bounds are|not a range"):
        OffsetSet.from_bounds(bounds)


@pytest.mark.parametrize("other", [{1, 2}, 5, None])
@pytest.mark.parametrize("combine", [operator.or_, operator.and_, operator.sub, operator.le])
def test_an_offset_set_combines_only_with_its_own_kind(
    other: object, combine: Callable[[object, object], object]
) -> None:
    assert OffsetSet(5) != other
    with pytest.raises(TypeError):
        combine(OffsetSet(5), other)


# The text form

LARGE_SETS = st.lists(st.integers(1, 2**50), min_size=1, max_size=25).map(
    lambda steps: OffsetSet.from_bounds([sum(steps[: i + 1]) for i in range(len(steps) - (len(steps) + 1) % 2)])
)
NOTES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["headrace/", "headrace/1 5 abc", "headrace/2 7 x y", " ", "\n", "it's mine"]
)


@STEADY
@given(SETS | LARGE_SETS, NOTES)
@example(OffsetSet(LAST, [(0, LAST - 1)]), "")
@example(OffsetSet(LAST), "headrace/1 5 abc")
def test_a_text_is_read_as_it_was_written(offsets: OffsetSet, note: str) -> None:
    text = offsets.to_text(note=note)
    assert OffsetSet.from_text(text, offsets.low) == offsets
    assert note_in(text) == note


def test_a_plain_offset_needs_no_text() -> None:
    assert OffsetSet(5).to_text() == ""
    assert OffsetSet(5).to_text(note="mine") == "mine"


def test_what_was_written_once_is_read_forever() -> None:
    """Committed texts outlive upgrades: a change of the format needs a new version number beside this one."""
    text = "headrace/1 70 mO=BnGGYXbl?4C mine"
    assert OffsetSet.from_text(text, 70) == OffsetSet(130, [(70, 120), (125, 126)])
    assert note_in(text) == "mine"


def random_holes(seed: int, count: int, done_part: float) -> OffsetSet:
    chance = random.Random(seed)
    return OffsetSet(1000 + count, [(k, k + 1) for k in range(1000, 1000 + count) if chance.random() > done_part])


@pytest.mark.parametrize("done_part", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("limit", [0, 20, 40, 100, 1000, 4096])
@pytest.mark.parametrize("note", ["", "grüße " * 3])
def test_the_limit_holds_and_only_done_offsets_are_lost(done_part: float, limit: int, note: str) -> None:
    offsets = random_holes(1, 20_000, done_part)
    if limit < len(note.encode()):
        with pytest.raises(ValueError, match="bytes"):
            offsets.to_text(limit, note)
        return
    text = offsets.to_text(limit, note)
    assert len(text.encode()) <= limit
    assert note_in(text) == note
    back = OffsetSet.from_text(text, offsets.low)
    assert back <= offsets
    assert back.low == offsets.low
    if limit >= 100:
        assert len(text.encode()) >= 0.95 * limit or back == offsets


@STEADY
@given(LARGE_SETS, NOTES, st.integers(0, 120))
def test_a_text_stays_within_any_limit(offsets: OffsetSet, note: str, limit: int) -> None:
    try:
        text = offsets.to_text(limit, note)
    except ValueError:
        assert len(note.encode()) > limit or note.startswith("headrace/")
        return
    assert len(text.encode()) <= limit
    assert note_in(text) == note
    back = OffsetSet.from_text(text, offsets.low)
    assert back <= offsets
    assert back.low == offsets.low


def test_the_longest_done_ranges_stay() -> None:
    """The longest ranges matter most: without them a restart would process all their records again."""
    offsets = random_holes(2, 60_000, 0.5).with_done(30_000, 50_000).with_done(2_000_000, 5_000_000)
    back = OffsetSet.from_text(offsets.to_text(), offsets.low)
    assert back != offsets
    assert 30_000 in back
    assert not back.open(30_000, 50_000)
    assert not back.open(2_000_000, 5_000_000)


def test_more_is_kept_than_by_a_bitmap_or_a_cut() -> None:
    """The limit fits a bitmap of 3,276 bytes: 26,208 offsets, of which 9 in 10 are done here."""
    offsets = random_holes(3, 100_000, 0.9)
    back = OffsetSet.from_text(offsets.to_text(), offsets.low)
    assert back.frontier - back.low - back.count_open > 1.5 * 26_208 * 0.9


def test_a_pattern_costs_next_to_nothing() -> None:
    """Transactions of one record each: every other offset is a marker, which counts as done."""
    offsets = OffsetSet(100_000, [(k, k + 1) for k in range(0, 100_000, 2)])
    text = offsets.to_text()
    assert len(text) < 300
    assert OffsetSet.from_text(text, 0) == offsets


def test_more_holes_than_a_text_may_unfold_to_are_given_up() -> None:
    """The text keeps as many holes as it may decode to and drops the done ranges beyond."""
    offsets = OffsetSet(200_000, [(k, k + 1) for k in range(0, 200_000, 2)])
    text = offsets.to_text()
    back = OffsetSet.from_text(text, 0)
    assert len(back.holes) == 1 << 16
    assert back <= offsets


@STEADY
@given(SETS.filter(lambda offsets: offsets.holes), st.integers(0, LAST))
def test_a_text_beside_another_committed_offset_is_ignored(offsets: OffsetSet, committed: int) -> None:
    """Another client committed a different offset and kept the old text."""
    if committed != offsets.low:
        assert OffsetSet.from_text(offsets.to_text(), committed) == OffsetSet(committed)


@STEADY
@given(st.text() | st.text().map("headrace/1 5 ".__add__) | st.binary().map(lambda b: f"headrace/1 5 {b85encode(b)!r}"))
@example("headrace/1 5 ")
@example("headrace/1 5 \ud800")
@example("headrace/1 5 ~~~~~")
@example("headrace/1 " + "5" * 5000 + " x")
@example("headrace/2 5 00000")
def test_any_text_is_read_as_a_note(text: str) -> None:
    assert OffsetSet.from_text(text, 5) == OffsetSet(5)
    assert isinstance(note_in(text), str)


@STEADY
@given(LARGE_SETS.filter(lambda offsets: offsets.holes), st.data())
def test_a_damaged_text_is_ignored(offsets: OffsetSet, data: st.DataObject) -> None:
    """One character of the packed part is changed or missing, or the end is cut off."""
    text = offsets.to_text()
    at = data.draw(st.integers(text.rindex(" ") + 1, len(text) - 1))
    other = data.draw(st.sampled_from("09AZaz!#~"))
    for damaged in (text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :]):
        # The last character may carry unused bits, so a different character can decode to the same bytes.
        assert OffsetSet.from_text(damaged, offsets.low) in (OffsetSet(offsets.low), offsets)
    assert OffsetSet.from_text(text[:at], offsets.low) == OffsetSet(offsets.low)


def forged(body: bytes, low: int, behind: bytes = b"") -> str:
    """A text with a valid checksum."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = stream.compress(body) + stream.flush() + behind
    checksum = zlib.crc32(body, zlib.crc32(low.to_bytes(8))).to_bytes(4)
    return f"headrace/1 {low} {b85encode(checksum + body).decode()}"


def test_a_text_forged_as_it_should_be_is_read() -> None:
    assert OffsetSet.from_text(forged(bytes([50, 10]), 70), 70) == OffsetSet(130, [(70, 120)])


@pytest.mark.timeout(60)  # each decodes in milliseconds unless its claimed size is trusted
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(bytes([50]), id="a hole and nothing behind it"),
        pytest.param(bytes([50, 0]), id="an empty range"),
        pytest.param(bytes([50, 10, 0x80]), id="ends within a number"),
        pytest.param(b"\xff" * 1_100_000 + b"\x01\x01", id="a number without end"),
        pytest.param(b"\xff" * 8 + b"\x7f" + b"\x01", id="beyond the last offset"),
        pytest.param(b"\x01" * 50_000_000, id="a bomb"),
    ],
)
def test_forged_texts_are_ignored(body: bytes) -> None:
    assert OffsetSet.from_text(forged(body, 70), 70) == OffsetSet(70)


def test_a_text_with_something_behind_it_is_ignored() -> None:
    assert OffsetSet.from_text(forged(bytes([50, 10]), 70, b"!"), 70) == OffsetSet(70)


def test_the_offset_in_a_text_is_compared_with_the_committed_one() -> None:
    """Two offsets may have the same checksum."""
    twin = 6814697265
    assert zlib.crc32(twin.to_bytes(8)) == zlib.crc32((70).to_bytes(8))
    assert OffsetSet.from_text(OffsetSet(130, [(70, 120)]).to_text(), twin) == OffsetSet(twin)


def test_committed_must_be_an_offset() -> None:
    with pytest.raises(ValueError, match="not a range of offsets"):
        OffsetSet.from_text("", -1)
