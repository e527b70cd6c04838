"""Random numbers for backoffs and choices of a broker or partition. They are independent of Python's module `random`: a
program that calls `random.seed()` neither changes what clients do, nor do clients change its numbers."""

from __future__ import annotations

import os
import random

chance = random.Random()
os.register_at_fork(after_in_child=chance.seed)  # otherwise a child would repeat the pauses of its parent
