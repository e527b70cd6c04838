"""How long to wait before a retry: doubled each time up to a limit, with a jitter of 20 %."""

from __future__ import annotations

import dataclasses

_JITTER = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class Backoff:
    """Times in milliseconds, as in the settings."""

    initial_ms: int
    max_ms: int

    def seconds(self, failures: int, dice: float) -> float:
        """The pause after this many failures in a row (from 1). `dice` is a number from 0 to 1, for the jitter."""
        if failures <= 0:
            return 0.0
        grown = min(self.initial_ms * 2.0 ** min(failures - 1, 40), max(self.initial_ms, self.max_ms))
        return grown * (1 - _JITTER + 2 * _JITTER * dice) / 1000


REFUSAL = Backoff(500, 5_000)
"""Between retries after a denial: somebody has to grant a right first, and brokers log each denial."""
