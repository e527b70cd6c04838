"""Which offsets of a partition are done, when they are not done in order: a *frontier* with *holes*.

    offset   0 . . . . . . . 70 . . . . 120 . . . . 130 . . .
             done            hole       done        open            OffsetSet(130, [(70, 120)])
                             ^ low                  ^ frontier

    below the frontier      done, except for the holes; also everything before the start of the log
    from the frontier on    open
    low                     the lowest open offset: what may be committed as a plain offset

Ranges are half-open, `(start, end)`. A value is its *bounds*: the offsets at which done and open take turns, in
ascending order, the first being `low` and the last the frontier. So every set of offsets has exactly one form: an odd
number of bounds, each larger than the one before. An offset is done when an even number of bounds is at or below it.

A hole cannot touch the frontier: OffsetSet(120, [(70, 120)]) *is* OffsetSet(70). A reader that starts at 120 therefore
marks what it has read, `with_done(120, 130)`. There is no "move the frontier to 130": it would mark 70 to 120 as well.

A set has no truth value of its own: a partition of which nothing is done is not the same as an unknown one.

The text form goes into the metadata of a commit, beside the plain offset `low`:

    headrace/1 70 tVXx7G6IYX00 the user's own metadata
    form       |  |            a note, if there is one
               |  base 85 of: CRC-32 of the offset and of what follows, 4 bytes; raw deflate of the lengths of
               |  the holes, then of the done ranges behind them, as varints
               the offset it was committed with; with any other one the text means nothing

Deflate is used for its Huffman codes: holes from random completion cost their entropy, about as much as a bitmap where
every other offset is done, and far less elsewhere. Without holes the text is the note alone.
"""

from __future__ import annotations

import base64
import operator
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

from ..._arguments import LAST_OFFSET as LAST_OFFSET

Range = tuple[int, int]

_MARK = "headrace/"
_FORM = _MARK + "1"
_TEXT = re.compile(_FORM + r" (?P<offset>[0-9]+) (?P<packed>[^ ]+)(?: (?P<note>.*))?", re.DOTALL)
# The most that a text may hold: a few kilobytes of deflate can expand to megabytes.
_MOST_HOLES = 1 << 16
_LONGEST_VARINT = 9  # bytes, for 63 bits


class OffsetSet:
    """An immutable set of done offsets: all below `frontier`, except for those in `holes`.

    The holes may come in any order and overlap; parts of them at or above the frontier have no effect.
    A range that is inverted, negative or beyond Kafka's last offset raises ValueError, here and in every method.
    An empty range has no effect.
    """

    __slots__ = ("_bounds",)

    def __init__(self, frontier: int, holes: Iterable[Range] = ()) -> None:
        check_range(0, frontier)
        bounds: list[int] = []
        for start, end in sorted(holes):
            check_range(start, end)
            if start >= frontier or start == end:
                continue
            if bounds and start <= bounds[-1]:
                bounds[-1] = max(bounds[-1], end)
            else:
                bounds += (start, end)
        if bounds and bounds[-1] >= frontier:
            bounds.pop()
        else:
            bounds.append(frontier)
        self._bounds = tuple(bounds)

    @classmethod
    def from_bounds(cls, bounds: Iterable[int]) -> OffsetSet:
        """The set with these `bounds`. Raises ValueError if no set has them."""
        kept = tuple(bounds)
        if len(kept) % 2 == 0 or not all(map(operator.lt, kept, kept[1:])):
            raise ValueError("bounds are an odd number of offsets, each larger than the one before")
        check_range(kept[0], kept[-1])
        return cls._of(kept)

    @classmethod
    def _of(cls, bounds: tuple[int, ...]) -> OffsetSet:
        made = cls.__new__(cls)
        made._bounds = bounds
        return made

    @property
    def bounds(self) -> tuple[int, ...]:
        """The offsets at which done and open alternate: `low`, the ends and starts of the holes, the frontier."""
        return self._bounds

    @property
    def frontier(self) -> int:
        """The first offset from which on nothing is done."""
        return self._bounds[-1]

    @property
    def low(self) -> int:
        """The lowest offset that is not done: the plain offset that may be committed."""
        return self._bounds[0]

    @property
    def holes(self) -> tuple[Range, ...]:
        """The ranges below the frontier that are not done, in ascending order."""
        return tuple(zip(self._bounds[:-1:2], self._bounds[1::2], strict=True))

    @property
    def count_open(self) -> int:
        """How many offsets below the frontier are not done."""
        return sum(self._bounds[1::2]) - sum(self._bounds[:-1:2])

    @property
    def count_done(self) -> int:
        """How many offsets are done, also those before the start of the log."""
        return self.frontier - self.count_open

    def __contains__(self, offset: int) -> bool:
        return offset >= 0 and bisect_right(self._bounds, offset) % 2 == 0

    def next_open(self, offset: int) -> int:
        """The first one from `offset` on that is not done."""
        index = bisect_right(self._bounds, offset)
        return offset if index % 2 else self._bounds[index]

    def open(self, start: int, end: int) -> list[Range]:
        """The ranges of [start, end) that are not done, beyond the frontier as well."""
        check_range(start, end)
        return open_ranges(self._bounds, start, end)

    def with_done(self, start: int, end: int) -> OffsetSet:
        """This and [start, end). The offsets between the frontier and `start` become a hole."""
        check_range(start, end)
        if start == end:
            return self
        first, last, between = splice(self._bounds, start, end, done=True)
        return self._of((*self._bounds[:first], *between, *self._bounds[last:]))

    def __or__(self, other: OffsetSet) -> OffsetSet:
        """Done in either. `| OffsetSet(start)`: no record before `start` will ever come, as after retention."""
        if not isinstance(other, OffsetSet):
            return NotImplemented
        return self._of(tuple(_swept(self._bounds, other._bounds, operator.or_)))

    def __and__(self, other: OffsetSet) -> OffsetSet:
        """Done in both. `& OffsetSet(end)`: nothing from `end` on is done any more, as after a truncation there."""
        if not isinstance(other, OffsetSet):
            return NotImplemented
        return self._of(tuple(_swept(self._bounds, other._bounds, operator.and_)))

    def __sub__(self, other: OffsetSet) -> list[Range]:
        """The ranges that are done here and not there, in ascending order: the difference of two checkpoints."""
        if not isinstance(other, OffsetSet):
            return NotImplemented
        ends = iter(_swept(self._bounds, other._bounds, operator.gt))
        return list(zip(ends, ends, strict=True))

    def __le__(self, other: OffsetSet) -> bool:
        """Whether everything that is done here is done there."""
        if not isinstance(other, OffsetSet):
            return NotImplemented
        return not self - other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetSet):
            return NotImplemented
        return self._bounds == other._bounds

    def __hash__(self) -> int:
        return hash(self._bounds)

    def __repr__(self) -> str:
        holes = f", {list(self.holes)}" if len(self._bounds) > 1 else ""
        return f"OffsetSet({self.frontier}{holes})"

    def __reduce__(self) -> tuple[object, ...]:
        return OffsetSet.from_bounds, (self._bounds,)

    def to_text(self, limit: int = 4096, note: str = "") -> str:
        """The metadata to be committed with the offset `low`: at most `limit` bytes of UTF-8.

        `note` is the user's own text. It is kept in full; the rest of the room is for the holes. Without holes the
        metadata is the note alone. If not all holes fit, done offsets are written as open, the shortest ranges of them
        first; never an open one as done. Raises ValueError if the note alone is too long.
        """
        used = len(note.encode())
        if used > limit:
            raise ValueError(f"metadata of {used} bytes, {limit} are allowed")
        is_like_ours = looks_like_ours(note)
        if len(self._bounds) == 1 and not is_like_ours:
            return note
        head = f"{_FORM} {self.low} "
        tail = f" {note}" if note else ""
        packed = self.packed(limit - len(head) - len(tail.encode()))
        if packed is not None:
            return f"{head}{packed}{tail}"
        if is_like_ours:
            raise ValueError(f"metadata that looks like headrace's own needs more than {limit} bytes")
        return note

    def packed(self, room: int) -> str | None:
        """Everything but `low`, in at most `room` characters without a space; None if nothing fits. Done offsets that
        do not fit are written as open."""
        # Five characters carry four bytes.
        packed = _pack_most(self._bounds, room * 4 // 5)
        return None if packed is None else base64.b85encode(packed).decode()

    @classmethod
    def unpacked(cls, packed: str, low: int) -> OffsetSet:
        """Reads what `packed` wrote. Raises ValueError for anything else, and for another offset."""
        check_range(low, low)
        try:
            return cls.from_bounds(_unpack(base64.b85decode(packed), low))
        except zlib.error as error:
            raise ValueError(f"damaged: {error}") from None

    @classmethod
    def from_text(cls, text: str, committed: int) -> OffsetSet:
        """Reads what `to_text` wrote beside the offset `committed`.

        Any other text, even one that was written for another offset or is damaged, returns what the offset alone says:
        everything below it is done. `note_in(text)` returns the user's part. Raises ValueError only if `committed` is
        not an offset.
        """
        plain, found = cls(committed), cls.in_text(text, committed)
        return plain if found is None else found

    @classmethod
    def in_text(cls, text: str, committed: int) -> OffsetSet | None:
        """The same, but None for any other text."""
        found = _TEXT.fullmatch(text)
        if found is None or found["offset"] != str(committed):
            return None
        try:
            return cls.unpacked(found["packed"], committed)
        except ValueError:
            return None


def note_in(text: str) -> str:
    """The user's own part of a commit's metadata."""
    found = _TEXT.fullmatch(text)
    return text if found is None else found["note"] or ""


def looks_like_ours(text: str) -> bool:
    """Whether a commit's metadata begins like headrace's own, in any form."""
    return text.startswith(_MARK)


def check_range(start: int, end: int) -> None:
    if not 0 <= start <= end <= LAST_OFFSET:
        raise ValueError(f"[{start}, {end}) is not a range of offsets")


def splice(bounds: Sequence[int], start: int, end: int, *, done: bool) -> tuple[int, int, tuple[int, ...]]:
    """Marks [start, end), which is not empty: returns the slice of the bounds to replace, and its replacement.

    A bound is needed at an edge of the range exactly where the other side of that edge is of the other kind.
    """
    first = bisect_left(bounds, start)
    last = bisect_right(bounds, end, first)
    edge = int(done)
    if first % 2 == edge:
        return first, last, (start, end) if last % 2 == edge else (start,)
    return first, last, (end,) if last % 2 == edge else ()


def open_ranges(bounds: Sequence[int], start: int, end: int) -> list[Range]:
    """The ranges of [start, end) that are not done."""
    first = bisect_right(bounds, start)
    last = bisect_left(bounds, end, first)
    points = [start, *bounds[first:last], end]
    return [span for span in list(pairwise(points))[(first + 1) % 2 :: 2] if span[0] < span[1]]


def _swept(left: Sequence[int], right: Sequence[int], rule: Callable[[bool, bool], bool]) -> list[int]:
    """Where `rule(done in left, done in right)` changes, in ascending order. Before all bounds both are done."""
    changes: list[int] = []
    state = rule(True, True)
    in_left = in_right = 0
    for point in sorted((*left, *right)):
        in_left += in_left < len(left) and left[in_left] == point
        in_right += in_right < len(right) and right[in_right] == point
        now = rule(in_left % 2 == 0, in_right % 2 == 0)
        if now != state:
            changes.append(point)
            state = now
    return changes


def _pack_most(bounds: tuple[int, ...], room: int) -> bytes | None:
    """As much as fits into `room` bytes; None if nothing does.

    Of the done ranges above the lowest hole the longest are kept and the shortest dropped, which joins the holes around
    them (or lowers the frontier); among equals the highest are dropped. How many can be kept depends on how well they
    compress, so it is searched for: by interpolation of the sizes and by halves in turn.
    """
    longest_first = sorted(range(1, len(bounds), 2), key=lambda i: bounds[i] - bounds[i + 1])

    def packed(count: int) -> bytes:
        if count == len(longest_first):
            return _pack(bounds)
        kept = sorted(longest_first[:count])
        return _pack((bounds[0], *(bound for i in kept for bound in bounds[i : i + 2])))

    best = packed(0)
    if len(best) > room:
        return None
    fits, size_that_fits = 0, len(best)
    count = too_many = min(len(longest_first), _MOST_HOLES)
    if count == 0:
        return best
    by_halves = False
    too_large = 0
    while True:
        made = packed(count)
        if len(made) <= room:
            best, fits, size_that_fits = made, count, len(made)
        else:
            too_many, too_large = count, len(made)
        # The last hundredth is not worth another round: those are the shortest.
        if too_many - fits <= max(1, too_many // 100):
            return best
        guess = (too_many - fits) // 2
        if not by_halves:
            guess = (too_many - fits) * (room - size_that_fits) // (too_large - size_that_fits)
        by_halves = not by_halves
        count = min(max(fits + guess, fits + 1), too_many - 1)


def _pack(bounds: tuple[int, ...]) -> bytes:
    lengths = list(map(operator.sub, bounds[1:], bounds))
    holes, done = _varints(lengths[0::2]), _varints(lengths[1::2])
    # Huffman codes alone are best for data without a pattern, matches for data with one.
    body = min((_deflate(holes, done, how) for how in (zlib.Z_HUFFMAN_ONLY, zlib.Z_FILTERED)), key=len)
    return _checksum(body, bounds[0]) + body


def _unpack(packed: bytes, low: int) -> list[int]:
    """The bounds. Raises ValueError or zlib.error for what `_pack` did not make with this offset."""
    checksum, body = packed[:4], packed[4:]
    if checksum != _checksum(body, low):
        raise ValueError("damaged")
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    lengths = _numbers(inflate.decompress(body, 2 * _MOST_HOLES * _LONGEST_VARINT))
    if not inflate.eof or inflate.unused_data or len(lengths) % 2:
        raise ValueError("truncated, or followed by other data")
    half = len(lengths) // 2
    in_turns = (length for pair in zip(lengths[:half], lengths[half:], strict=True) for length in pair)
    return list(accumulate(in_turns, initial=low))


def _checksum(body: bytes, low: int) -> bytes:
    return zlib.crc32(body, zlib.crc32(low.to_bytes(8))).to_bytes(4)


def _deflate(holes: bytes, done: bytes, strategy: int) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    # A block each: the two have little in common, and a block has its own codes.
    return stream.compress(holes) + stream.flush(zlib.Z_BLOCK) + stream.compress(done) + stream.flush()


def _varints(numbers: list[int]) -> bytes:
    if max(numbers, default=0) < 128:
        return bytes(numbers)
    written = bytearray()
    for number in numbers:
        while number > 127:
            written.append(number & 127 | 128)
            number >>= 7
        written.append(number)
    return bytes(written)


def _numbers(varints: bytes) -> list[int]:
    numbers = []
    number = shift = 0
    for byte in varints:
        number |= (byte & 127) << shift
        if byte < 128:
            numbers.append(number)
            number = shift = 0
        else:
            shift += 7
            if shift == 7 * _LONGEST_VARINT:
                raise ValueError("a number that is too long")
    if shift:
        raise ValueError("ends within a number")
    return numbers
