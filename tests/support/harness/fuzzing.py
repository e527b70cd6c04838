"""Reproducible mutations, like those of a damaged disk, a broken peer or an attacker.

A test runs a fixed number of mutations. With FUZZ_SECONDS in the environment it runs new ones for that long.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
# Critical values of lengths, counts and ids, as varints and as big-endian integers.
_NUMBERS = [0, 1, 2, 127, 128, 255, 2**15 - 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
_PIECES = [
    *(number.to_bytes(size, "big") for number in _NUMBERS for size in (1, 2, 4, 8) if number < 2 ** (8 * size)),
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80" * 12,
    b"\0" * 16,
]


def rounds(count: int, seed: int = 1) -> Iterator[random.Random]:
    """A random generator for each round."""
    if not SECONDS:
        for number in range(count):
            yield random.Random(seed * 1_000_000 + number)
        return
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        number = random.SystemRandom().getrandbits(48)
        print(f"fuzzing with seed {number}")
        for step in range(1000):
            yield random.Random(number + step)


def mutated(data: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """`data` with a few changes: bits, numbers, pieces removed, duplicated, cut off or taken from another input."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.choice((1, 2, 4, 8, 30)))
        match chance.randrange(8):
            case 0 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(found):
                found[at] = chance.randrange(256)
            case 2:
                piece = chance.choice(_PIECES)
                found[at : at + len(piece)] = piece
            case 3:
                found[at:at] = chance.choice(_PIECES)
            case 4:
                del found[at:end]
            case 5:
                found[at:at] = found[at:end] * chance.choice((1, 2, 50))
            case 6:
                del found[at:]
            case 7 if others:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                found[at:end] = other[start : start + chance.randrange(60)]
    return bytes(found)
