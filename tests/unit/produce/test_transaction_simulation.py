"""Transactions against a model of the coordinator, over a lossy and slow network, with competing producers."""

from __future__ import annotations

import os

import pytest

from support.harness.transaction_world import World


@pytest.mark.parametrize("part", range(4))
def test_readers_see_all_or_nothing_of_each_transaction_whatever_happens(part: int) -> None:
    for seed in range(part, 60_000 if os.environ.get("SOAK") else 3_000, 4):
        world = World(seed)
        try:
            for _ in range(world.dice.randrange(20, 600)):
                world.step()
                world.check()
            world.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_simulation_reaches_what_it_is_about() -> None:
    results, excuses, versions = set(), set(), set()
    commits = 0
    for seed in range(400):
        world = World(seed)
        for _ in range(600):
            world.step()
        world.finish()
        results |= {each.result for each in world.transactions}
        commits += sum(each.result == "committed" and len(each.records) > 1 for each in world.transactions)
        excuses |= world.excuses if world.is_dead else set()
        versions.add(world.manager.produce_versions.highest)
    assert results == {"committed", "aborted", "unknown"}
    assert len(excuses) >= 4
    assert versions == {11, 13}
    assert commits > 300
