"""How many records of a poll are the backlog lane's (KIP-333): parallel.rebalance.backlog.share of them.

Live records come first, but not so many that nothing of its quota is left for the backlog. The fraction of a record by
which a small poll misses the quota is carried over to the next poll. A quota for which there were no records is not.
"""

from __future__ import annotations


class BacklogQuota:
    def __init__(self, portion: float) -> None:
        self._portion = portion
        self._owed = 0.0  # below one record

    def reserve(self, limit: int, available: int) -> int:
        """How many records of a poll of `limit` to keep for the backlog lane, which has so many available."""
        owed = self._owed + limit * self._portion
        self._owed = owed % 1.0
        return min(int(owed), limit, available)
