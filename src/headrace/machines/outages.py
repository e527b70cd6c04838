"""When to warn of a broker that cannot be reached.

    it fails for            what is logged, by whoever asks
    less than PATIENCE      nothing: brokers restart, and leaders move
    longer                  a warning, and again every EVERY seconds while it is tried
    no longer               that it is over, if there was a warning

Failures that lie further apart than EVERY are not one outage: nobody has tried in between.
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


class Outages:
    """Of all brokers of a client, by whatever names them."""

    def __init__(self) -> None:
        self._outages: dict[Hashable, _Outage] = {}

    def tries(self, what: Hashable, now: float) -> None:
        """A try begins. If it fails, the outage has lasted since the first of them."""
        outage = self._outages.get(what)
        if outage is None or now - outage.tried > EVERY:
            self._outages[what] = _Outage(now, now)
        else:
            outage.tried = now

    def to_warn_of(self, what: Hashable, now: float) -> float | None:
        """A try has failed, or has not ended yet: for how many seconds there was no success, if it is time to warn."""
        outage = self._outages.get(what)
        if outage is None or now - outage.since < PATIENCE or now - outage.warned < EVERY:
            return None
        outage.warned = now
        return now - outage.since

    def ends(self, what: Hashable, now: float) -> float | None:
        """It works again: for how many seconds it did not, if there was a warning."""
        outage = self._outages.pop(what, None)
        return None if outage is None or outage.warned < 0 else now - outage.since
