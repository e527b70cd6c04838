"""Options that are understood and mean nothing in this query: accepted, and named once in the driver's log."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from .consumer_settings import OF_MEMBERS, UNUSED
from .group_options import NOT_SHARED, GroupOptions
from .option_values import KNOWN, WITHOUT_MEANING, lowered

log = logging.getLogger(__name__)

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


def log_unused(given: Mapping[str, str], groups: GroupOptions | None) -> None:
    """`groups` is None in a batch query."""
    if names := unused(given, groups):
        log.warning("these options are accepted and mean nothing in this query: %s", ", ".join(names))


def unused(given: Mapping[str, str], groups: GroupOptions | None) -> list[str]:
    options = lowered(given)
    without = WITHOUT_MEANING | {f"kafka.{name}" for name in UNUSED}
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
    return sorted(KNOWN.get(name, name) for name in without & options.keys())
