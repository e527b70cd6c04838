"""The choice of a record's partition, as in Java's producer (KIP-480, KIP-794).

    the user names a partition     that one
    the record has a key           hash(key) modulo the number of all partitions, with or without a leader. An empty key
                                   is a key
    the record has no key          the sticky partition of its topic

- The sticky partition stays until `batch_size` bytes were appended to it. Then another one is drawn from the partitions
  that have a leader. A switch waits for the end of the current batch, so that batches are full, but at most for twice
  `batch_size` bytes.
- Adaptive: a partition with a longer queue of batches is drawn less often, since its broker is slow or busy.

| partitioner         | a key                     | no key |
|---------------------|---------------------------|--------|
| `default`           | murmur2, as in Java       | sticky |
| `murmur2_random`    | murmur2                   | sticky |
| `consistent_random` | CRC-32, as in librdkafka; | sticky |
|                     | an empty key is no key    |        |
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

Hash = Callable[[bytes], int]


class KeyPartitioner:
    """The partition of a key. `hash` returns a positive number."""

    def __init__(self, hash: Hash, *, ignores_empty: bool = False) -> None:
        self._hash = hash
        self._ignores_empty = ignores_empty

    def partition(self, key: bytes | None, count: int) -> int | None:
        """The partition of the key. None if the record goes to the sticky partition."""
        if key is None or (self._ignores_empty and not key):
            return None
        return self._hash(key) % count


class StickyPartitioner:
    """The sticky partition of one topic, for records without a key. `dice` returns a random number in [0, 1)."""

    def __init__(self, batch_size: int, dice: Callable[[], float], *, is_adaptive: bool = True) -> None:
        self._batch_size = max(1, batch_size)
        self._dice = dice
        self._is_adaptive = is_adaptive
        self._partition: int | None = None
        self._appended = 0  # bytes, since the last switch
        self._partitions: list[int] = []  # to draw from ...
        self._weights: list[int] = []  # ... and their cumulative weights; empty: all equal

    def partition(self, available: Sequence[int], count: int) -> int:
        """The sticky partition. `available` are the partitions with a leader, `count` is the number of all."""
        if self._partition is None or self._partition >= count:
            self._draw(available, count)
        assert self._partition is not None
        return self._partition

    def appended(self, size: int, available: Sequence[int], count: int, *, is_batch_full: bool) -> None:
        """`size` bytes were appended to the sticky partition. `is_batch_full`: nothing more fits into its batch."""
        self._appended += size
        is_time = self._appended >= self._batch_size and is_batch_full
        if is_time or self._appended >= 2 * self._batch_size:
            self._draw(available, count)

    def queues_changed(self, queue_lengths: Mapping[int, int], available: Sequence[int]) -> None:
        """`queue_lengths` has the number of waiting batches of each partition that had any. It is used only once it has
        all partitions of the topic: until then the draw is uniform.
        """
        self._partitions, self._weights = [], []
        partitions = [each for each in available if each in queue_lengths]
        if not self._is_adaptive or len(partitions) < 2 or len(partitions) < len(available):
            return
        longest = max(queue_lengths[each] for each in partitions)
        weights = [longest + 1 - queue_lengths[each] for each in partitions]
        if len(set(weights)) > 1:
            self._partitions, self._weights = partitions, list(itertools.accumulate(weights))

    def _draw(self, available: Sequence[int], count: int) -> None:
        self._appended = 0
        if self._weights and all(each < count for each in self._partitions):
            at = bisect_right(self._weights, self._dice() * self._weights[-1])
            self._partition = self._partitions[min(at, len(self._partitions) - 1)]
            return
        choices = available or range(count)
        self._partition = choices[min(int(self._dice() * len(choices)), len(choices) - 1)]
