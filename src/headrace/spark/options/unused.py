"""Options that have no effect in a query: they are accepted, and listed once in the driver's log."""

from __future__ import annotations

from collections.abc import Mapping

from .consumer import MEMBER_SETTINGS, UNUSED_SETTINGS, is_unknown_setting
from .group import NOT_IN_SHARE_GROUPS, GroupOptions
from .parsers import IGNORED_OPTIONS, documented_name, is_unknown, lowercase_names

_TRIGGER_OPTIONS = {"minoffsetspertrigger", "maxoffsetspertrigger", "maxtriggerdelay", "maxoffsetspertriggershares"}
_UNUSED_IN_SHARE_GROUPS = {
    *(f"kafka.{name}" for name in NOT_IN_SHARE_GROUPS),
    "failondataloss",
    "kafkaconsumer.polltimeoutms",
    "maxoffsetspertriggershares",
    "maxrecordsperpartition",
    "maxtriggerdelay",
    "startingoffsetsbytimestampstrategy",
}


def unused_options_warning(given: Mapping[str, str], group_options: GroupOptions | None) -> str | None:
    """The warning, or None if every option has an effect. `group_options` is None in a batch query."""
    names = find_unused_options(given, group_options)
    return f"These options are accepted but have no effect in this query: {', '.join(names)}" if names else None


def find_unused_options(given: Mapping[str, str], group_options: GroupOptions | None) -> list[str]:
    options = lowercase_names(given)
    unused = {*IGNORED_OPTIONS} | {f"kafka.{name}" for name in UNUSED_SETTINGS}
    if group_options is None:
        unused |= _TRIGGER_OPTIONS
    elif group_options.share_group:
        unused |= _UNUSED_IN_SHARE_GROUPS
        unused -= {"kafka.max.poll.interval.ms"}
    else:
        if group_options.is_member:
            unused -= {f"kafka.{name}" for name in MEMBER_SETTINGS}
        if group_options.is_member or group_options.commits:
            unused -= {"kafka.group.id"}
        if group_options.lanes is not None and options.get("maxoffsetspertriggershares", "").strip().lower() != "fair":
            unused |= {"maxoffsetspertriggershares"}
    found = {name for name in options if name in unused or is_unknown(name) or is_unknown_setting(name)}
    return sorted(documented_name(name) for name in found)
