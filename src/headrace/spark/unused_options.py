"""Options that mean nothing in this query: accepted, and named once in the driver's log."""

from __future__ import annotations

from collections.abc import Mapping

from .consumer_settings import OF_MEMBERS, UNUSED, is_foreign
from .group_options import NOT_SHARED, GroupOptions
from .option_values import WITHOUT_MEANING, is_unknown, lowered, spelt

_OF_TRIGGERS = {"minoffsetspertrigger", "maxoffsetspertrigger", "maxtriggerdelay", "maxoffsetspertriggershares"}
_NOT_SHARED = {
    *(f"kafka.{name}" for name in NOT_SHARED),
    "failondataloss",
    "kafkaconsumer.polltimeoutms",
    "maxoffsetspertriggershares",
    "maxrecordsperpartition",
    "maxtriggerdelay",
    "startingoffsetsbytimestampstrategy",
}


def said_of_unused(given: Mapping[str, str], groups: GroupOptions | None) -> str | None:
    """`groups` is None in a batch query."""
    names = unused(given, groups)
    return f"these options are accepted and mean nothing in this query: {', '.join(names)}" if names else None


def unused(given: Mapping[str, str], groups: GroupOptions | None) -> list[str]:
    options = lowered(given)
    without = {*WITHOUT_MEANING} | {f"kafka.{name}" for name in UNUSED}
    if groups is None:
        without |= _OF_TRIGGERS
    elif groups.share_group:
        without |= _NOT_SHARED
        without -= {"kafka.max.poll.interval.ms"}
    else:
        if groups.is_member:
            without -= {f"kafka.{name}" for name in OF_MEMBERS}
        if groups.is_member or groups.commits:
            without -= {"kafka.group.id"}
        if groups.lanes is not None and options.get("maxoffsetspertriggershares", "").strip().lower() != "fair":
            without |= {"maxoffsetspertriggershares"}
    found = {name for name in options if name in without or is_unknown(name) or is_foreign(name)}
    return sorted(spelt(name) for name in found)
