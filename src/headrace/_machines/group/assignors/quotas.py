"""How many partitions of which pool each member gets. `balance.py` says what for.

Members and pools are numbers here; a pool is the list of its members. A member's *load* is its number of partitions in
all pools.

Levelling starts with the highest loads, so the highest load that is left never rises, and a member that gave one away
never gets one: it has at most one less than that. This is why a pool's heap of members need not be updated when a load
falls. When no member in reach of a member (and of those in their reach, and so on) has two less, all of them are done,
because the same is true for each of them; their pools are not looked at again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence


class Quotas:
    """The counts, from what is owned to balance. `pools` has the members of each pool."""

    def __init__(self, pools: Sequence[Sequence[int]], owned: Sequence[Mapping[int, int]]) -> None:
        self.counts = [dict(each) for each in owned]
        """For each member, its count in each pool."""
        self._pools = pools
        self._owned = owned
        self._loads = [sum(each.values()) for each in owned]
        self._heaps: list[list[tuple[int, int]]] = []

    def deal(self, free: Sequence[int]) -> None:
        """Distributes this many of each pool, one by one to the member with the lowest load."""
        self._sort()
        for pool in sorted(range(len(free)), key=lambda pool: len(self._pools[pool])):
            for _ in range(free[pool]):
                taker = self._least_loaded(pool)
                self._loads[taker] += 1
                self._add(taker, pool)

    def level(self, only_dealt: bool = False) -> None:
        """Moves counts from high to low loads until no move is left. With `only_dealt` no member falls below what it
        owned."""
        self._sort()
        loads = self._loads
        givers = [(-load, member) for member, load in enumerate(loads)]
        heapq.heapify(givers)
        done: set[int] = set()
        settled: set[int] = set()
        while givers:
            load, giver = heapq.heappop(givers)
            if giver in done or loads[giver] != -load:
                continue
            steps = self._relief(giver, only_dealt, done, settled)
            if steps is None:
                continue
            for source, pool, taker in steps:
                self.counts[source][pool] -= 1
                self._add(taker, pool)
            last = steps[-1][2]
            loads[giver] -= 1
            loads[last] += 1
            heapq.heappush(givers, (-loads[giver], giver))
            heapq.heappush(givers, (-loads[last], last))

    def _relief(
        self, giver: int, only_dealt: bool, done: set[int], settled: set[int]
    ) -> list[tuple[int, int, int]] | None:
        """The shortest chain from the giver to a member with at least two less: who gives one of which pool to whom.
        If there is none, all members that were reached are done."""
        most = self._loads[giver] - 2
        came_from: dict[int, tuple[int, int]] = {giver: (giver, -1)}
        reached = [giver]
        seen: set[int] = set()
        for member in reached:
            floor: Mapping[int, int] = self._owned[member] if only_dealt else {}
            giving = [
                pool
                for pool, count in self.counts[member].items()
                if count > floor.get(pool, 0) and pool not in settled and pool not in seen
            ]
            taken = self._best_taker(member, giving, most)
            if taken is not None:
                steps = [(member, *taken)]
                while member != giver:
                    taker, (member, pool) = member, came_from[member]
                    steps.append((member, pool, taker))
                return steps[::-1]
            for pool in giving:
                seen.add(pool)
                for other in self._pools[pool]:
                    if other not in came_from:
                        came_from[other] = member, pool
                        reached.append(other)
        done.update(reached)
        settled |= seen
        return None

    def _best_taker(self, giver: int, giving: Iterable[int], most: int) -> tuple[int, int] | None:
        """The member with the lowest load, if that is `most` or less, and the pool that it gets one of: the one of
        which the giver has the most and the taker the fewest, so that no member collects a topic."""
        best, found = None, None
        for pool in giving:
            taker = self._least_loaded(pool)
            if self._loads[taker] <= most:
                rank = self._loads[taker], self.counts[taker].get(pool, 0) - self.counts[giver][pool]
                if best is None or rank < best:
                    best, found = rank, (pool, taker)
        return found

    def _least_loaded(self, pool: int) -> int:
        heap = self._heaps[pool]
        while True:
            known, member = heap[0]
            load = self._loads[member]
            if load <= known:
                return member
            heapq.heapreplace(heap, (load, member))

    def _sort(self) -> None:
        self._heaps = [sorted((self._loads[member], member) for member in members) for members in self._pools]

    def _add(self, member: int, pool: int) -> None:
        counts = self.counts[member]
        counts[pool] = counts.get(pool, 0) + 1
