"""KIP-41: how the records of one poll are shared over the partitions that have some.

    fair      equal shares; what a partition cannot use goes to the others, until nothing is left to give
    greedy    each partition in turn, as much as it has

With many partitions, the first few in turn get a handful each and then stand behind all others: a little of each of
hundreds would cost more than the records, and over the polls that follow it is as fair. Otherwise the next poll starts
after the partition at which this one stopped. So none starves.
"""

from __future__ import annotations

from collections.abc import Sequence

MANY = 24
"""So many partitions, or as many as records, are too many to be served by each poll."""
FEW = 8
"""Then it serves these."""


def fair_shares(available: Sequence[int], limit: int) -> tuple[list[int], int]:
    """How many to take of each, and where the next poll starts."""
    if 0 < len(available) <= limit and min(available) > limit // len(available):  # the usual case, made quick
        each, over = divmod(limit, len(available))
        return [each + 1] * over + [each] * (len(available) - over), over
    shares = [0] * len(available)
    hungry = [index for index, count in enumerate(available) if count > 0]
    left = limit
    start = 0
    while left > 0 and hungry:
        each = left // len(hungry)
        if each == 0:
            for index in hungry[:left]:
                shares[index] += 1
            start = (hungry[left - 1] + 1) % len(available)
            break
        for index in hungry:
            share = min(each, available[index] - shares[index])
            shares[index] += share
            left -= share
        hungry = [index for index in hungry if shares[index] < available[index]]
    return shares, start


def greedy_shares(available: Sequence[int], limit: int) -> tuple[list[int], int]:
    """How many to take of each, and where the next poll starts."""
    shares = []
    start = 0
    left = limit
    for index, count in enumerate(available):
        share = min(count, left)
        shares.append(share)
        left -= share
        if share and not left:
            start = (index + 1) % len(available)
    return shares, start
