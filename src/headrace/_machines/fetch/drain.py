"""KIP-41: how the limit of one poll is divided among the partitions that have records.

    fair      equal quotas; what a partition cannot use goes to the others, until nothing is left
    greedy    each partition in turn, as much as it has

With many partitions, the first few in turn get a handful each and then move behind all others: a little of each of
hundreds would cost more than the records themselves, and over the following polls it is as fair. Otherwise the next
poll starts after the partition at which this one stopped. So no partition waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

MANY = 24
"""With so many partitions, or as many as records, a poll does not serve all of them."""
FEW = 8
"""Then it serves so many."""


def fair_quotas(available: Sequence[int], limit: int) -> tuple[list[int], int]:
    """How many to take of each, and where the next poll starts."""
    if 0 < len(available) <= limit and min(available) > limit // len(available):  # the usual case, made quick
        each, over = divmod(limit, len(available))
        return [each + 1] * over + [each] * (len(available) - over), over
    quotas = [0] * len(available)
    unserved = [index for index, count in enumerate(available) if count > 0]
    left = limit
    start = 0
    while left > 0 and unserved:
        each = left // len(unserved)
        if each == 0:
            for index in unserved[:left]:
                quotas[index] += 1
            start = (unserved[left - 1] + 1) % len(available)
            break
        for index in unserved:
            more = min(each, available[index] - quotas[index])
            quotas[index] += more
            left -= more
        unserved = [index for index in unserved if quotas[index] < available[index]]
    return quotas, start


def greedy_quotas(available: Sequence[int], limit: int) -> tuple[list[int], int]:
    """How many to take of each, and where the next poll starts."""
    quotas = []
    start = 0
    left = limit
    for index, count in enumerate(available):
        quota = min(count, left)
        quotas.append(quota)
        left -= quota
        if quota and not left:
            start = (index + 1) % len(available)
    return quotas, start
