"""Fuzzing of commit metadata: brokers return it, and any client may have written it.

Damaged or foreign metadata never makes a record be skipped. In a plain commit it is ignored; a damaged token of open
ranges (KIP-333) raises an error, since ignoring it would skip those ranges.
"""

from __future__ import annotations

import base64
import random
import zlib

from headrace._machines.commit.completion import Completion
from headrace._machines.commit.offset_set import OffsetSet, _checksum, note_in
from headrace._machines.lanes.commit_metadata import CommitMark
from headrace.types import OffsetAndMetadata
from support.harness.fuzzing import mutated, rounds

_LIMIT = 4096


def some_set(chance: random.Random) -> OffsetSet:
    """A set as out-of-order completion produces it."""
    start = chance.choice((0, 5, 10_000, 2**40))
    work = Completion(OffsetSet(start))
    work.delivered(start, start + 200)
    for offset in chance.sample(range(start, start + 200), chance.randrange(150)):
        work.done(offset)
    return work.as_set()


def texts() -> list[str]:
    chance = random.Random(5)
    made = []
    for number in range(40):
        done = some_set(chance)
        note = chance.choice(("", "a note", "headrace/1 in a note", "ÿ\n\0"))
        made.append(done.to_text(_LIMIT, note))
        made.append(CommitMark(done.low + 300, done, f"token{number}", note).commit.metadata)
    return [*made, "", "headrace/1", "headrace/2 ", "headrace/9 1 2 3", '{"offset": 5}', "x" * 4096]


TEXTS = texts()
_OTHERS = [text.encode() for text in TEXTS]


def damaged(chance: random.Random) -> tuple[str, str]:
    text = chance.choice(TEXTS)
    return text, mutated(text.encode(), chance, _OTHERS).decode("utf-8", "replace")


def offset_in(text: str, chance: random.Random) -> int:
    """Mostly the offset that the text was written for, otherwise another one."""
    words = text.split(" ")
    own = int(words[1]) if len(words) > 2 and words[1].isdigit() and len(words[1]) < 19 else 0
    return chance.choice((own, own, own, own + 1, 0, 2**62))


def test_damaged_offset_metadata_is_read_as_a_plain_commit() -> None:
    whole = 0
    for chance in rounds(8_000, seed=4):
        good, text = damaged(chance)
        committed = offset_in(text, chance)
        found = OffsetSet.from_text(text, committed)
        assert found.low == committed
        if found != OffsetSet(committed):
            whole += 1
            # Still valid: only the note was changed, or the mutation inserted another text of the corpus.
            assert found in {OffsetSet.from_text(each, committed) for each in TEXTS}, (good, text)
        assert isinstance(note_in(text), str)
    assert whole > 40


def test_a_damaged_commit_mark_raises_and_never_skips_offsets() -> None:
    refused = kept = 0
    marked = {
        CommitMark.read(OffsetAndMetadata(int(text.split(" ")[1]), text)).done
        for text in TEXTS
        if text.startswith("headrace/2 ") and len(text.split(" ")) > 4
    }
    for chance in rounds(8_000, seed=5):
        good, text = damaged(chance)
        committed = offset_in(text, chance)
        try:
            mark = CommitMark.read(OffsetAndMetadata(committed, text))
        except ValueError:
            refused += 1
            assert text.startswith("headrace/2 ")
            continue
        if mark.token:
            kept += 1
            assert mark.offset == committed
            assert mark.done in marked, (good, text)
        else:
            assert mark.done.low == committed
    assert refused > 200
    assert kept > 40


def test_a_compression_bomb_in_commit_metadata_is_ignored() -> None:
    body = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = body.compress(b"\x01" * 20_000_000) + body.flush()
    text = f"headrace/1 7 {base64.b85encode(_checksum(packed, 7) + packed).decode()}"
    assert OffsetSet.from_text(text, 7) == OffsetSet(7)
