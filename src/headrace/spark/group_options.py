"""The options that make a streaming query a good citizen of Kafka: off unless they are given.

    commitOffsets=true                  what is done is committed to kafka.group.id, for tools that show lags
    enable.parallel.rebalance=true      KIP-333: newest records first, the backlog beside them
      parallel.rebalance.min.lag, parallel.rebalance.backlog.share, as the consumer has them
    includeLane=true                    a column `lane`, live or backlog
    watermarkDelay=…                    counts records that the query's watermark drops
    group.membership=true               KIP-62, KIP-983: a member of kafka.group.id, which assigns its partitions
    share.group.id=…                    KIP-932, KIP-1206: records acquired from a share group

Which of them go together:

                       commitOffsets   parallel.rebalance   membership   share.group.id
    commitOffsets            -                yes            implied          no
    parallel.rebalance      yes                -               yes            no
    membership            implied             yes               -             no
    share.group.id           no                no               no             -
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..config import ConsumerConfig, dotted
from ..errors import ConfigError
from ..share_config import REFUSED, ShareConsumerConfig
from .consumer_settings import OF_MEMBERS, check_settings
from .lanes import LaneTerms
from .option_values import OF_GROUPS, OptionError, delay, flag, lowered, spelt
from .options import Assigned, SourceOptions, Subscribed

COMMIT, LANES, MIN_LAG, BACKLOG_SHARE, INCLUDE_LANE, WATERMARK, MEMBERSHIP, SHARE = OF_GROUPS

NOT_SHARED = {dotted(name) for name in REFUSED}
"""Settings that a member of a share group does not have."""
LONGEST_LOCK_MS = "3600000"
"""For how long the records of a batch are kept, without max.poll.interval.ms. Spark tells that a batch is complete by
asking for the next one, so a trigger's interval is part of it: minutes are not rare."""


@dataclasses.dataclass(frozen=True)
class GroupOptions:
    """All of them, checked."""

    commits: bool = False
    lanes: LaneTerms | None = None
    include_lane: bool = False
    watermark_delay_ms: int | None = None
    is_member: bool = False
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Of the consumer that commits, is a member, or acquires: the source's, with group.id and those of members."""
    share_group: str | None = None

    @property
    def is_off(self) -> bool:
        """Whether the source is as Spark's own."""
        return not (self.commits or self.lanes or self.is_member or self.share_group)

    @classmethod
    def of(cls, given: Mapping[str, str], source: SourceOptions) -> GroupOptions:
        """Raises OptionError."""
        options = lowered(given)
        share = options.get(SHARE)
        if share is not None:
            return cls(share_group=share.strip(), settings=_share_settings(options, source, share.strip()))
        group = options.get("kafka.group.id", "").strip()
        is_member = flag(options, MEMBERSHIP)
        commits = flag(options, COMMIT)
        if (is_member or commits) and not group:
            name = MEMBERSHIP if is_member else COMMIT
            raise OptionError(f"{name}=true needs the option kafka.group.id: it names the group")
        if is_member and COMMIT.lower() in options and not commits:
            raise OptionError(f"{COMMIT}=false: with {MEMBERSHIP}=true offsets are always committed to the group")
        if is_member and isinstance(source.strategy, Assigned):
            raise OptionError(f"assign: with {MEMBERSHIP}=true the group assigns partitions; use subscribe")
        names = OF_MEMBERS if is_member else ()
        own = {name: options[f"kafka.{name}"] for name in names if f"kafka.{name}" in options}
        settings = {**source.settings, **own, "group.id": group} if is_member or commits else {}
        if settings:
            check_settings(settings)
        return cls(
            commits=commits and not is_member,
            lanes=_lanes(options),
            include_lane=flag(options, INCLUDE_LANE),
            watermark_delay_ms=_watermark_delay(options),
            is_member=is_member,
            settings=settings,
        )


def refuse_in_batch(given: Mapping[str, str]) -> None:
    """Raises OptionError: a batch query has no part in any of this."""
    options = lowered(given)
    for name in OF_GROUPS:
        if options.get(name.lower(), "false").strip().lower() != "false":
            raise OptionError(f"{name} is for streaming queries: a batch query has nothing to go on with")


def has_lane(given: Mapping[str, str]) -> bool:
    """Whether the schema has the column `lane`; what else is wrong is said later."""
    return lowered(given).get(INCLUDE_LANE.lower(), "").strip().lower() == "true"


def _lanes(options: Mapping[str, str]) -> LaneTerms | None:
    if not flag(options, LANES):
        for name in (MIN_LAG, BACKLOG_SHARE, WATERMARK):
            if name.lower() in options:
                raise OptionError(f"{name} needs {LANES}=true")
        return None
    own = {name: options[name] for name in (MIN_LAG, BACKLOG_SHARE) if name in options}
    try:
        found = ConsumerConfig.parse({**own, "bootstrap.servers": "unused:1"})
    except ConfigError as error:
        raise OptionError(str(error)) from None
    return LaneTerms(found.parallel_rebalance_min_lag, found.parallel_rebalance_backlog_share)


def _watermark_delay(options: Mapping[str, str]) -> int | None:
    given = options.get(WATERMARK.lower())
    return None if given is None else delay(given, WATERMARK)


def _share_settings(options: Mapping[str, str], source: SourceOptions, group: str) -> dict[str, str]:
    if not group:
        raise OptionError(f"{SHARE} is empty: it names the share group")
    for name in (COMMIT, LANES, INCLUDE_LANE, MEMBERSHIP):
        if flag(options, name):
            raise OptionError(
                f"{name}=true and {SHARE} exclude each other: a share group has no offsets of its members"
            )
    for name in (MIN_LAG, BACKLOG_SHARE, WATERMARK):
        if name.lower() in options:
            raise OptionError(f"{name} and {SHARE} exclude each other: a share group has no offsets of its members")
    for name in ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"):
        if name in options:
            raise OptionError(
                f"{spelt(name)} and {SHARE} exclude each other: where a share group starts is kept by the brokers "
                f"(share.auto.offset.reset, set by kafka-configs)"
            )
    if not isinstance(source.strategy, Subscribed):
        raise OptionError(f"{SHARE} needs the option subscribe: a share group subscribes to topics by name")
    for name in ("minpartitions", "minoffsetspertrigger"):
        if name in options:
            raise OptionError(f"{spelt(name)} means nothing with {SHARE}: a batch is what the group gives at a time")
    settings = {name: value for name, value in source.settings.items() if name not in NOT_SHARED}
    settings["group.id"] = group
    settings["max.poll.interval.ms"] = options.get("kafka.max.poll.interval.ms", LONGEST_LOCK_MS)
    try:
        ShareConsumerConfig.parse(settings)
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from None
    return settings
