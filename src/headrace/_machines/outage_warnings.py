"""When to warn about a broker that cannot be reached.

    attempts fail for       what the caller logs
    less than PATIENCE      nothing: brokers restart, and leaders move
    longer                  a warning, repeated every EVERY seconds while attempts continue
    no longer               that the outage is over, if there was a warning

Failures more than EVERY seconds apart are separate outages: nobody tried to connect in between.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable

PATIENCE = 3.0
EVERY = 60.0


@dataclasses.dataclass(slots=True)
class _Outage:
    since: float
    tried: float
    warned: float = -math.inf


class OutageWarnings:
    """Of all brokers of a client. Any hashable value can name a broker."""

    def __init__(self) -> None:
        self._outages: dict[Hashable, _Outage] = {}

    def tries(self, what: Hashable, now: float) -> None:
        """An attempt starts. If it fails, the outage has lasted since the first attempt."""
        outage = self._outages.get(what)
        if outage is None or now - outage.tried > EVERY:
            self._outages[what] = _Outage(now, now)
        else:
            outage.tried = now

    def to_warn_of(self, what: Hashable, now: float) -> float | None:
        """An attempt failed, or takes long. Returns the seconds since the last success if it is time to warn."""
        outage = self._outages.get(what)
        if outage is None or now - outage.since < PATIENCE or now - outage.warned < EVERY:
            return None
        outage.warned = now
        return now - outage.since

    def ends(self, what: Hashable, now: float) -> float | None:
        """An attempt succeeded. Returns how many seconds the outage lasted, if there was a warning."""
        outage = self._outages.pop(what, None)
        return None if outage is None or outage.warned < 0 else now - outage.since
