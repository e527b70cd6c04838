"""The calls that `Admin` and `AsyncAdmin` have in common: arguments are checked at once, the rest runs on the admin
client's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from ..._arguments import (
    commits_in,
    optional_seconds_of,
    partition_of,
    partitions_in,
    short_repr,
    text_of,
    topic_of,
    whole_number_of,
)
from ..._machines.admin.reset import DROP, KEEP
from ..._machines.admin.reset_target import reset_target
from ...admin import (
    GroupDescription,
    GroupListing,
    GroupSetting,
    OffsetRange,
    ResetPlan,
    ShareOffset,
    TopicDescription,
)
from ...config.consumer import ConsumerConfig
from ...errors import ConfigError
from ...types import OffsetAndMetadata, TopicPartition, Watermarks
from ..lifecycle import Lifecycle
from ..poll_signal import PollSignal
from .runtime import AdminRuntime

T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, T]]
"""Creates a coroutine, on the admin client's thread."""

_UNCLOSED = "its connections were left open"


class AdminCalls:
    def __init__(self, config: ConsumerConfig) -> None:
        self.lifecycle: Lifecycle[AdminRuntime] = Lifecycle(
            PollSignal(), lambda: AdminRuntime(config), role="admin", unclosed=_UNCLOSED
        )
        self.lifecycle.end_dropped = self.end_tasks
        self.guard = self.lifecycle.guard

    def _call(self, work: Callable[[AdminRuntime], Coroutine[Any, Any, T]]) -> Call[T]:
        self.guard.check()
        lifecycle = self.lifecycle
        return lambda: work(lifecycle.start())

    async def end_tasks(self) -> None:
        """On the admin client's thread."""
        runtime = self.lifecycle.detach_runtime()
        if runtime is not None:
            await runtime.close()

    # -- topics --------------------------------------------------------------------------------------------------------

    def cluster_id(self, timeout: Any) -> Call[str]:
        seconds = optional_seconds_of(timeout)
        return self._call(lambda it: it.topics.cluster_id(seconds))

    def topics(self, names: Any, timeout: Any) -> Call[dict[str, TopicDescription]]:
        chosen, seconds = None if names is None else sorted(_topic_names(names)), optional_seconds_of(timeout)
        return self._call(lambda it: it.topics.describe(chosen, seconds))

    def create_topic(self, name: Any, partitions: Any, replication: Any, settings: Any, timeout: Any) -> Call[None]:
        name, seconds = topic_of(name), optional_seconds_of(timeout)
        counts = _count_of("partitions", partitions), _count_of("replication", replication)
        chosen = {text_of("a setting", key): _value_of(key, value) for key, value in _pairs(settings)}
        return self._call(lambda it: it.topics.create(name, *counts, chosen, seconds))

    def delete_topic(self, name: Any, timeout: Any) -> Call[None]:
        name, seconds = topic_of(name), optional_seconds_of(timeout)
        return self._call(lambda it: it.topics.delete(name, seconds))

    def bounds(self, partitions: Any, timeout: Any) -> Call[dict[TopicPartition, Watermarks]]:
        asked, seconds = partitions_in(partitions), optional_seconds_of(timeout)
        return self._call(lambda it: it.topics.bounds(asked, seconds))

    # -- groups --------------------------------------------------------------------------------------------------------

    def groups(self, timeout: Any) -> Call[list[GroupListing]]:
        seconds = optional_seconds_of(timeout)
        return self._call(lambda it: it.groups.list_all(seconds))

    def describe_group(self, group: Any, timeout: Any) -> Call[GroupDescription | None]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        return self._call(lambda it: it.groups.describe(group, seconds))

    def delete_group(self, group: Any, timeout: Any) -> Call[tuple[str, ...]]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        return self._call(lambda it: it.delete_group(group, seconds))

    def group_config(self, group: Any, timeout: Any) -> Call[dict[str, GroupSetting]]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        return self._call(lambda it: it.configs.describe(group, seconds))

    def alter_group_config(self, group: Any, settings: Any, timeout: Any) -> Call[None]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        changes = {
            text_of("a setting", key): None if value is None else _value_of(key, value)
            for key, value in _pairs(settings)
        }
        if not changes:
            raise ConfigError("alter_group_config() needs at least one setting")
        return self._call(lambda it: it.configs.alter(group, changes, seconds))

    # -- offsets -------------------------------------------------------------------------------------------------------

    def committed(self, group: Any, timeout: Any) -> Call[dict[TopicPartition, OffsetAndMetadata]]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        return self._call(lambda it: it.offsets.committed(group, seconds))

    def open_ranges(self, group: Any, timeout: Any) -> Call[dict[TopicPartition, tuple[OffsetRange, ...]]]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        return self._call(lambda it: it.resets.open_ranges(group, seconds))

    def alter_offsets(self, group: Any, offsets: Any, timeout: Any) -> Call[None]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        commits = _some(commits_in({} if offsets is None else offsets), "alter_offsets()")
        return self._call(lambda it: it.offsets.alter(group, commits, seconds))

    def delete_offsets(self, group: Any, partitions: Any, timeout: Any) -> Call[None]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        chosen = _some(partitions_in(partitions), "delete_offsets()")
        return self._call(lambda it: it.offsets.delete(group, chosen, seconds))

    def share_offsets(self, group: Any, timeout: Any) -> Call[dict[TopicPartition, ShareOffset]]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        return self._call(lambda it: it.share_offsets.describe(group, seconds))

    def alter_share_offsets(self, group: Any, offsets: Any, timeout: Any) -> Call[None]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        commits = _some(commits_in({} if offsets is None else offsets), "alter_share_offsets()")
        starts = {tp: commit.offset for tp, commit in commits.items()}
        return self._call(lambda it: it.share_offsets.alter(group, starts, seconds))

    def delete_share_offsets(self, group: Any, topics: Any, timeout: Any) -> Call[None]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        names = _some(sorted(_topic_names(topics)), "delete_share_offsets()")
        return self._call(lambda it: it.share_offsets.delete(group, names, seconds))

    # -- resets --------------------------------------------------------------------------------------------------------

    def plan_reset(self, group: Any, to: Any, topics: Any, backlog: Any, create: Any, timeout: Any) -> Call[ResetPlan]:
        group, seconds = _group_of(group), optional_seconds_of(timeout)
        target = reset_target(to, time.time())
        if backlog not in (None, KEEP, DROP):
            raise ConfigError(f"backlog must be 'keep', 'drop' or None, not {short_repr(backlog)}")
        chosen = None if topics is None else _some(_topics_and_partitions(topics), "plan_reset(topics=…)")
        if create and chosen is None:
            raise ConfigError("the offsets of a new group need topics")
        return self._call(lambda it: it.resets.plan(group, target, chosen, backlog, bool(create), seconds))

    def apply_reset(self, plan: Any, timeout: Any) -> Call[None]:
        seconds = optional_seconds_of(timeout)
        if not isinstance(plan, ResetPlan):
            raise TypeError(f"plan must be the result of plan_reset(), not {short_repr(plan)}")
        return self._call(lambda it: it.resets.apply(plan, seconds))


def _group_of(value: Any) -> str:
    if text_of("group", value) == "":
        raise ConfigError("group must not be empty")
    return str(value)


def _topic_names(names: Any) -> set[str]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"topics must be a list of topic names, not {short_repr(names)}")
    return {topic_of(each) for each in names}


def _topics_and_partitions(chosen: Any) -> list[TopicPartition | str]:
    if isinstance(chosen, (str, bytes, TopicPartition)) or not isinstance(chosen, Iterable):
        raise TypeError(f"topics must be a list of topic names and partitions, not {short_repr(chosen)}")
    return list(dict.fromkeys(topic_of(each) if isinstance(each, str) else partition_of(each) for each in chosen))


def _pairs(settings: Any) -> list[tuple[Any, Any]]:
    if settings is None:
        return []
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a mapping of names to values, not {short_repr(settings)}")
    return list(settings.items())


def _value_of(name: Any, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return text_of(f"the setting {name}", str(value) if isinstance(value, (int, float)) else value)


def _count_of(name: str, value: Any) -> int:
    number = whole_number_of(name, value)
    if number != -1 and not 1 <= number <= 2**15 - 1 + (name == "partitions") * 2**30:
        raise ValueError(f"{name} must be at least 1, or -1 for the brokers' default: {short_repr(number)}")
    return number


def _some(found: T | None, call: str) -> T:
    if not found:
        raise ConfigError(f"{call} needs at least one topic or partition")
    return found
