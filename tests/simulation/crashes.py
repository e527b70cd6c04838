"""KIP-333 without a broker: a log, two commit logs, and a consumer that crashes at any moment.

The lanes' machine and the commit texts are real; everything else is a model. After every step, each offset that the
two commit logs mark as done was delivered (or deleted by retention). Within one life of a consumer, no record is
delivered twice, and none that was committed before. At the end, an undisturbed consumer delivers all missing records.

No progress is left in the second log after an orderly end, nor when a consumer with two lanes, or a commit, has
followed a crash. In some worlds, the second log has a commit of somebody else, which stays as it is.

An unclean election can truncate the log. When it grows again, other records are at the old offsets. Each lane notices
at its own time. A commit has the leader epoch of its log (KIP-320) and is valid as far as that epoch still exists.

    python -m simulation.crashes --seeds 100000
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

from headrace._machines.commit.offset_set import LAST_OFFSET, OffsetSet
from headrace._machines.lanes.commit_metadata import (
    BACKLOG_SUFFIX,
    CommitMark,
    committed_offset,
    done_offsets,
    is_foreign,
    is_progress_of,
    token_of,
)
from headrace._machines.lanes.lanes import Lanes, lane_start
from headrace.types import OffsetAndMetadata

GROUP = "g"


class World:
    """The state that survives a crash. A generation fences commits to the first log, but not those to the second."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.start = 0
        self.end = chance.randrange(30)
        self.first: OffsetAndMetadata | None = None
        self.foreign = _foreign(chance)
        self.second = self.foreign
        self.zombie_wrote = False  # to the second log, since the last consumer began
        self.generation = 0
        self.epoch = 0
        self.cuts: list[int] = []  # the ends of earlier epochs
        self.delivered: list[int] = []  # delivery count by offset
        self.longest_text = 0

    def commit_first(self, mark: CommitMark, generation: int) -> bool:
        if generation != self.generation:
            return False
        self.first = mark.commit
        self.longest_text = max(self.longest_text, len(self.first.metadata))
        return True

    def commit_second(self, mark: CommitMark, generation: int) -> None:
        assert self.foreign is None, "the commit of somebody else is overwritten"
        self.second = mark.commit
        self.zombie_wrote |= generation != self.generation

    @property
    def has_progress(self) -> bool:
        return self.second is not None and is_progress_of(self.second, GROUP)

    def tidy(self) -> None:
        if self.has_progress:
            self.second = None

    def read(self) -> tuple[CommitMark, CommitMark | None] | None:
        if self.first is None:
            return None
        return CommitMark.read(self.first), None if self.second is None else CommitMark.read(self.second)

    def still_true(self, first: CommitMark) -> CommitMark:
        """The part of the mark that is valid for the current log."""
        return first if first.leader_epoch is None else first.below(self.same_until(first.leader_epoch))

    def same_until(self, epoch: int) -> int:
        """The offset up to which the log still has the records of the epoch."""
        return min(self.cuts[epoch:], default=LAST_OFFSET)

    def truncate(self, offset: int) -> None:
        """Truncate the log. Later records at these offsets count as undelivered."""
        self.end = offset
        self.cuts.append(offset)
        self.epoch += 1
        del self.delivered[offset:]

    @property
    def has_epoch(self) -> bool:
        """Whether commits have an epoch. Without one, a group cannot detect a truncation."""
        return self.first is None or self.first.leader_epoch is not None

    def done(self) -> OffsetSet:
        found = self.read()
        return OffsetSet(0) if found is None else done_offsets(self.still_true(found[0]), found[1])

    def deliver(self, offset: int) -> None:
        assert self.start <= offset < self.end
        self.delivered += [0] * (offset + 1 - len(self.delivered))
        self.delivered[offset] += 1

    def reset(self, offset: int) -> None:
        """Set the offset of an empty group by hand. All records from there on must be delivered again."""
        self.generation += 1
        self.first = OffsetAndMetadata(offset)
        self.delivered[offset:] = [0] * len(self.delivered[offset:])

    def was_delivered(self, offset: int) -> bool:
        return offset < self.start or (offset < len(self.delivered) and self.delivered[offset] > 0)

    def check(self) -> None:
        done = self.done()
        for start, end in done - OffsetSet(self.start):
            for offset in range(start, end):
                assert self.was_delivered(offset), f"{offset} is committed and was never delivered: {self}"

    def __str__(self) -> str:
        return f"log [{self.start}, {self.end}), first {self.first}, second {self.second}"


def _foreign(chance: random.Random) -> OffsetAndMetadata | None:
    """What somebody else's group has committed that has the name of the second log: perhaps one with two lanes."""
    if chance.random() < 0.9:
        return None
    theirs = CommitMark(7, OffsetSet(3), token_of(GROUP + BACKLOG_SUFFIX, "theirs")).commit
    return chance.choice((OffsetAndMetadata(5), OffsetAndMetadata(5, "note"), theirs))


class LanedConsumer:
    """A consumer with two lanes, as with `enable.parallel.rebalance`."""

    def __init__(self, world: World, min_lag: int) -> None:
        self.world = world
        self.min_lag = min_lag
        world.generation += 1
        self.generation = world.generation
        self.live = -1
        self.lanes: Lanes | None = None
        self.beside = 0
        self.beyond = OffsetSet(0)
        self.seen: set[int] = set()  # in this life
        self.before = OffsetSet(0)  # committed before it
        self.epoch = world.epoch  # epoch of the log that the live lane reads
        self.may_have_progress = False
        world.zombie_wrote = False

    def begin(self) -> Iterator[str]:
        """Start the consumer. Yields at each point where it can crash."""
        found, before, then = self.world.read(), self.world.done(), self.world.epoch
        beside = self.world.second
        yield "read"
        end, self.epoch = self.world.end, self.world.epoch
        yield "log end"
        self.before = before & OffsetSet(self.world.same_until(then))
        if found is None:
            self.live = self.world.start
            return
        first, second = self.world.still_true(found[0]), found[1]
        self.may_have_progress = bool(first.token)
        committed = committed_offset(first, second)
        start = lane_start(committed, end, self.min_lag)
        has_one_lane = beside is not None and is_foreign(beside, GROUP)
        if has_one_lane:
            self.live, self.beyond = committed.done.low, committed.done
        elif not start.holes:
            self.live, self.beyond = start.live, start.beyond
        if has_one_lane or not start.holes:
            if beside is not None and not first.token and is_progress_of(beside, GROUP):
                yield "before the deletion of what was left behind"
                self.world.tidy()
            return
        epoch = self.epoch if start.live <= end else first.leader_epoch
        lanes = Lanes(token_of(GROUP, f"t{self.world.chance.getrandbits(32)}"), start, epoch)
        self.may_have_progress = True
        yield "token created"
        if not self.world.commit_first(lanes.first, self.generation):
            return
        yield "token committed"
        self.lanes, self.live, self.beyond = lanes, lanes.live_start, lanes.beyond
        self.beside = lanes.within.low

    def poll(self, count: int) -> None:
        is_valid = False
        for _ in range(count):
            if self.lanes is not None and self.world.chance.random() < 0.5:
                self._poll_beside(self.lanes)
            elif self.live >= 0:
                if not is_valid:
                    self._validate()
                    is_valid = True
                at = max(self.beyond.next_open(self.live), self.world.start)
                if at < self.world.end:
                    self._take(at)
                    self.live = at + 1

    def _validate(self) -> None:
        """Go back to the offset where the log diverges."""
        same = self.world.same_until(self.epoch)
        self.epoch = self.world.epoch
        if same < LAST_OFFSET:
            self._forget(same)
            if same < self.live:
                self.live = same
                self.beyond &= OffsetSet(same)
                if self.lanes is not None:
                    self.lanes.cut(same)

    def _forget(self, offset: int) -> None:
        """Forget offsets from here on, since the log has other records there now."""
        self.seen = {each for each in self.seen if each < offset}
        self.before &= OffsetSet(offset)

    def _poll_beside(self, lanes: Lanes) -> None:
        if self.beside < self.world.start:
            lanes.log_begins(self.world.start, self.beside)
            self.beside = self.world.start
        at = lanes.within.next_open(self.beside)
        if at >= lanes.stop:
            self.beside = lanes.stop
        elif at < self.world.end:
            self._take(at)
            self.beside = at + 1
        elif self.beside > self.world.end:
            lanes.log_ends(self.beside)
            self.beside = self.world.end
            self._forget(self.beside)

    @property
    def is_through(self) -> bool:
        return self.live >= self.world.end and (self.lanes is None or self.beside >= self.lanes.stop)

    def _take(self, offset: int) -> None:
        assert offset not in self.seen, f"{offset} came from both lanes: {self.world}"
        assert offset not in self.before, f"{offset} was committed and came again: {self.world}"
        self.seen.add(offset)
        self.world.deliver(offset)

    def commit(self, kind: str | None = None) -> Iterator[str]:
        """A commit of both lanes, or an explicit one of one lane."""
        if self.live < 0:
            return
        kind = kind or self.world.chance.choice(("both", "both", "live", "backlog"))
        done = (self.lanes.beyond if self.lanes is not None else self.beyond) | OffsetSet(self.live)
        epoch = self.epoch
        lanes = self.lanes
        if lanes is None:
            if self.world.commit_first(CommitMark(done.low, done, leader_epoch=epoch), self.generation):
                yield "plain commit"
                self._tidy()
            return
        progress = None if kind == "live" else lanes.backlog_mark(OffsetSet(self.beside))
        if progress is not None:
            yield "before the second log"
            self.world.commit_second(progress, self.generation)
            lanes.progress = progress.done
        yield "between the logs"
        if kind != "backlog":
            mark = lanes.live_mark(done, leader_epoch=epoch)
        elif lanes.is_closed and lanes.has_token:
            mark = lanes.final_commit()
        else:
            return
        if self.world.commit_first(mark, self.generation):
            lanes.first = mark
            yield "before the deletion"
            if not mark.token:
                self._tidy()
        yield "after both"

    def close(self) -> Iterator[str]:
        if self.lanes is not None and self.lanes.has_token:
            yield "before the final commit"
            mark = self.lanes.final_commit()
            if self.world.commit_first(mark, self.generation):
                self.lanes.first = mark
                yield "after the final commit"
                self._tidy()

    def _tidy(self) -> None:
        if self.may_have_progress:
            self.world.tidy()


class PlainConsumer:
    """A consumer with one lane: headrace, or (`is_foreign`) a client that only knows offsets."""

    def __init__(self, world: World, *, is_foreign: bool) -> None:
        self.world = world
        self.is_foreign = is_foreign
        world.generation += 1
        self.generation = world.generation
        self.epoch = world.epoch
        self.done: OffsetSet | None = None
        self.may_have_progress = False
        world.zombie_wrote = False

    def begin(self) -> Iterator[str]:
        found = self.world.read()
        yield "read"
        self.epoch = self.world.epoch
        if found is None:
            self.done = OffsetSet(self.world.start)
        else:
            first = self.world.still_true(found[0])
            self.may_have_progress = bool(first.token) and not self.is_foreign
            self.done = OffsetSet(first.offset) if self.is_foreign else done_offsets(first, found[1])

    def poll(self, count: int) -> None:
        if self.done is None:
            return
        self.done &= OffsetSet(self.world.same_until(self.epoch))
        self.epoch = self.world.epoch
        for _ in range(count):
            self.done |= OffsetSet(self.world.start)
            at = self.done.next_open(0)
            if at < self.world.end:
                self.world.deliver(at)
                self.done = self.done.with_done(at, at + 1)

    def commit(self) -> Iterator[str]:
        if self.done is not None:
            kept = OffsetSet(self.done.low) if self.is_foreign else self.done
            if self.world.commit_first(CommitMark(kept.low, kept, leader_epoch=self.epoch), self.generation):
                yield "committed"
                if self.may_have_progress:
                    self.world.tidy()

    def close(self) -> Iterator[str]:
        return iter(())


def run(seed: int, steps: int = 60) -> World:
    """Run one simulation. Raises AssertionError if an invariant is broken."""
    chance = random.Random(seed)
    world = World(chance)
    zombies: list[LanedConsumer] = []
    was_closed = True  # a foreign client must not follow the crash of a consumer with two lanes
    consumer: Any = _new(world, chance, was_closed)
    under_way: Iterator[str] | None = consumer.begin()
    for _ in range(steps):
        event = chance.random()
        if event < 0.3:
            world.end += chance.randrange(8)
        elif event < 0.32:
            world.start = min(world.end, world.start + chance.randrange(12))
        elif event < 0.33 and world.has_epoch:
            world.truncate(chance.randrange(max(world.start, world.end - 20), world.end + 1))
        elif event < 0.40:  # a crash at the current point
            if isinstance(consumer, LanedConsumer):
                zombies.append(consumer)
                was_closed = False
            if event < 0.35 and world.first is not None:
                world.reset(chance.randrange(world.done().low + 1))
                was_closed = True
            consumer = _new(world, chance, was_closed)
            under_way = consumer.begin()
        elif event < 0.43 and under_way is None:
            commits = chance.random() < 0.7
            crashes = chance.random() < 0.2
            for _point in itertools.chain(consumer.commit() if commits else (), consumer.close()):
                if crashes and chance.random() < 0.3:
                    was_closed &= not isinstance(consumer, LanedConsumer)
                    break
            else:
                was_closed |= commits or isinstance(consumer, LanedConsumer)
                if (commits or _has_lanes(consumer)) and consumer.may_have_progress and not world.zombie_wrote:
                    assert not world.has_progress, f"progress is left after an orderly end: {world}"
            consumer = _new(world, chance, was_closed)
            under_way = consumer.begin()
        elif event < 0.48 and zombies:
            for _point in chance.choice(zombies).commit():
                if chance.random() < 0.5:
                    break
        elif under_way is not None:
            if next(under_way, None) is None:
                under_way = None
        elif event < 0.85:
            consumer.poll(chance.randrange(1, 12))
        else:
            under_way = consumer.commit()
        world.check()
    _finish(world, chance)
    return world


def _new(world: World, chance: random.Random, was_closed: bool) -> LanedConsumer | PlainConsumer:
    kind = chance.random()
    if kind < 0.75:
        return LanedConsumer(world, chance.choice((1, 1, 5)))
    return PlainConsumer(world, is_foreign=was_closed and kind > 0.9)


def _has_lanes(consumer: Any) -> bool:
    return isinstance(consumer, LanedConsumer) and consumer.lanes is not None


def _finish(world: World, chance: random.Random) -> None:
    last = LanedConsumer(world, 1)
    for _ in last.begin():
        pass
    for _ in range(200):
        last.poll(20)
        if last.is_through:
            break
    for kind in chance.choice((("both", "both"), ("live", "backlog"), ("backlog", "live"))):
        for _point in last.commit(kind):
            pass
    for _point in last.close():
        pass
    world.check()
    missing = [offset for offset in range(world.start, world.end) if not world.was_delivered(offset)]
    assert not missing, f"never delivered: {missing}, {world}"
    assert world.first is not None
    assert (world.first.offset, world.first.metadata) == (world.end, ""), f"{world} is not plain at the end"
    assert world.second == world.foreign, f"the second log at the end: {world}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.crashes")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    longest = 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            longest = max(longest, run(seed).longest_text)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}", file=sys.stderr)
    print(f"{options.seeds} simulations with crashes, {failed} failed; longest commit text: {longest} characters")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
