"""The options of streaming queries that use a group. Each is off by default.

    commitOffsets=true                  commits completed offsets to kafka.group.id, for tools that show lag
    enable.parallel.rebalance=true      KIP-333: newest records first, the backlog beside them
      parallel.rebalance.min.lag, parallel.rebalance.backlog.share: as for the consumer
    includeLane=true                    adds a column `lane`: live or backlog
    watermarkDelay=…                    counts records that the query's watermark drops
    group.membership=true               KIP-62, KIP-983: a member of kafka.group.id, which assigns its partitions
    share.group.id=…                    KIP-932, KIP-1206: records acquired from a share group

Which of them can be combined:

                       commitOffsets   parallel.rebalance   membership   share.group.id
    commitOffsets            -                yes            implied          no
    parallel.rebalance      yes                -               yes            no
    membership            implied             yes               -             no
    share.group.id           no                no               no             -
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...config.consumer import ConsumerConfig, dotted
from ...config.share import REFUSED, ShareConsumerConfig
from ...errors import ConfigError
from .consumer import MEMBER_SETTINGS, check_settings
from .parsers import GROUP_OPTIONS, OptionError, documented_name, lowercase_names, parse_boolean, parse_delay_ms
from .source import AssignStrategy, SourceOptions, SubscribeStrategy

COMMIT, LANES, MIN_LAG, BACKLOG_SHARE, INCLUDE_LANE, WATERMARK, MEMBERSHIP, SHARE_GROUP = GROUP_OPTIONS

NOT_IN_SHARE_GROUPS = {dotted(name) for name in REFUSED}
"""Settings that a member of a share group does not have."""
DEFAULT_SHARE_MAX_POLL_INTERVAL_MS = "3600000"
"""How long the records of a batch stay locked, unless max.poll.interval.ms is set. Spark signals that a batch is
complete by asking for the next one. So the time includes the trigger interval, which is often minutes."""


@dataclasses.dataclass(frozen=True, slots=True)
class LaneOptions:
    """KIP-333: parallel.rebalance.min.lag and parallel.rebalance.backlog.share, as for the consumer."""

    min_lag: int = 1
    backlog_share: float = 0.25


@dataclasses.dataclass(frozen=True)
class GroupOptions:
    """All of them, checked."""

    commits: bool = False
    lanes: LaneOptions | None = None
    include_lane: bool = False
    watermark_delay_ms: int | None = None
    is_member: bool = False
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Of the consumer that commits, is a member, or acquires: the source's, with group.id and those of members."""
    share_group: str | None = None

    @property
    def is_off(self) -> bool:
        """Whether the source behaves as Spark's own."""
        return not (self.commits or self.lanes or self.is_member or self.share_group)

    @classmethod
    def parse(cls, given: Mapping[str, str], source: SourceOptions) -> GroupOptions:
        """Raises OptionError."""
        options = lowercase_names(given)
        share_group = options.get(SHARE_GROUP)
        if share_group is not None:
            share_group = share_group.strip()
            return cls(share_group=share_group, settings=_share_settings(options, source, share_group))
        group = options.get("kafka.group.id", "").strip()
        is_member = parse_boolean(options, MEMBERSHIP)
        commits = parse_boolean(options, COMMIT)
        if (is_member or commits) and not group:
            name = MEMBERSHIP if is_member else COMMIT
            raise OptionError(f"{name}=true needs the option kafka.group.id, the name of the group")
        if is_member and COMMIT.lower() in options and not commits:
            raise OptionError(
                f"{COMMIT}=false contradicts {MEMBERSHIP}=true: a member always commits its offsets. Remove {COMMIT}"
            )
        if is_member and isinstance(source.strategy, AssignStrategy):
            raise OptionError(
                f"assign contradicts {MEMBERSHIP}=true: the group assigns partitions. Use subscribe or subscribePattern"
            )
        names = MEMBER_SETTINGS if is_member else ()
        own = {name: options[f"kafka.{name}"] for name in names if f"kafka.{name}" in options}
        settings = {**source.settings, **own, "group.id": group} if is_member or commits else {}
        if settings:
            check_settings(settings)
        return cls(
            commits=commits and not is_member,
            lanes=_parse_lanes(options),
            include_lane=parse_boolean(options, INCLUDE_LANE),
            watermark_delay_ms=_parse_watermark_delay(options),
            is_member=is_member,
            settings=settings,
        )


def reject_in_batch(given: Mapping[str, str]) -> None:
    """Raises OptionError if one of these options is given to a batch query."""
    options = lowercase_names(given)
    for name in GROUP_OPTIONS:
        if options.get(name.lower(), "false").strip().lower() != "false":
            raise OptionError(f"{name} is only for streaming queries: a batch query keeps no progress. Remove it")


def has_lane_column(given: Mapping[str, str]) -> bool:
    """Whether the schema has the column `lane`. Does not check the option: GroupOptions.parse() does."""
    return lowercase_names(given).get(INCLUDE_LANE.lower(), "").strip().lower() == "true"


def _parse_lanes(options: Mapping[str, str]) -> LaneOptions | None:
    if not parse_boolean(options, LANES):
        for name in (MIN_LAG, BACKLOG_SHARE, WATERMARK):
            if name.lower() in options:
                raise OptionError(f"{name} needs {LANES}=true")
        return None
    own = {name: options[name] for name in (MIN_LAG, BACKLOG_SHARE) if name in options}
    try:
        found = ConsumerConfig.parse({**own, "bootstrap.servers": "unused:1"})
    except ConfigError as error:
        raise OptionError(str(error)) from None
    return LaneOptions(found.parallel_rebalance_min_lag, found.parallel_rebalance_backlog_share)


def _parse_watermark_delay(options: Mapping[str, str]) -> int | None:
    given = options.get(WATERMARK.lower())
    return None if given is None else parse_delay_ms(given, WATERMARK)


def _share_settings(options: Mapping[str, str], source: SourceOptions, group: str) -> dict[str, str]:
    if not group:
        raise OptionError(f"{SHARE_GROUP} is empty. Set it to the name of the share group")
    for name in (COMMIT, LANES, INCLUDE_LANE, MEMBERSHIP):
        if parse_boolean(options, name):
            raise _excluded(f"{name}=true", "a share group has no committed offsets per member")
    for name in (MIN_LAG, BACKLOG_SHARE, WATERMARK):
        if name.lower() in options:
            raise _excluded(name, "a share group has no committed offsets per member")
    for name in ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"):
        if name in options:
            raise _excluded(
                documented_name(name),
                "the group's setting share.auto.offset.reset decides where it starts (see `headrace groups config`)",
            )
    if not isinstance(source.strategy, SubscribeStrategy):
        raise OptionError(f"{SHARE_GROUP} needs the option subscribe: a share group subscribes to topics by name")
    for name in ("minpartitions", "minoffsetspertrigger"):
        if name in options:
            raise _excluded(documented_name(name), "a batch of a share group has no minimum size")
    settings = {name: value for name, value in source.settings.items() if name not in NOT_IN_SHARE_GROUPS}
    settings["group.id"] = group
    settings["max.poll.interval.ms"] = options.get("kafka.max.poll.interval.ms", DEFAULT_SHARE_MAX_POLL_INTERVAL_MS)
    try:
        ShareConsumerConfig.parse(settings)
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from None
    return settings


def _excluded(option: str, reason: str) -> OptionError:
    return OptionError(f"{option} and {SHARE_GROUP} cannot be combined: {reason}. Remove one of them")
