"""The settings of a share consumer: a subset of a consumer's settings, and a few of its own.

The offset reset, the isolation level, the lock duration and the delivery limit are group settings. The brokers store
them; `headrace groups config` and `Admin.alter_group_config()` show and change them.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from .._parsers import dotted, given_settings, spelled_like
from ..errors import ConfigError
from .consumer import ConsumerConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A setting with a few allowed words. The first one is the default."""

    words: tuple[str, ...]
    meaning: str

    def parse(self, name: str, value: Any) -> str:
        text = value.strip().lower() if isinstance(value, str) else value
        if text not in self.words:
            raise ConfigError(f"{dotted(name)}={value!r}: must be " + " or ".join(self.words))
        assert isinstance(text, str)
        return text


OWN = {
    "share_acknowledgement_mode": Choice(
        ("implicit", "explicit"),
        "How records are acknowledged: all records of a poll() by the next poll() (implicit), or each record by "
        "acknowledge() (explicit).",
    ),
    "share_acquire_mode": Choice(
        ("batch_optimized", "record_limit"),
        "What a fetch acquires: whole batches, which may exceed max.poll.records (batch_optimized), or at most "
        "max.poll.records (record_limit, KIP-1206).",
    ),
    "renew": Choice(
        ("manual", "auto"),
        "With auto, the locks of returned records are renewed in the background until the records are acknowledged or "
        "max.poll.interval.ms has passed. In explicit mode, poll() may then be called while records are pending.",
    ),
}
"""The settings that only a share consumer has."""

_BY_GROUP = "is a setting of the group, which the brokers store"
_NO_OFFSETS = "members of a share group do not commit offsets"
REFUSED = {
    "auto_offset_reset": f"{_BY_GROUP}: share.auto.offset.reset",
    "isolation_level": f"{_BY_GROUP}: share.isolation.level",
    "session_timeout_ms": f"{_BY_GROUP}: share.session.timeout.ms",
    "heartbeat_interval_ms": f"{_BY_GROUP}: share.heartbeat.interval.ms",
    "enable_auto_commit": f"does not apply to share consumers: {_NO_OFFSETS}; see share.acknowledgement.mode",
    "auto_commit_interval_ms": f"does not apply to share consumers: {_NO_OFFSETS}; see share.acknowledgement.mode",
    "commit_mode": f"does not apply to share consumers: {_NO_OFFSETS}; see share.acknowledgement.mode",
    "group_instance_id": "does not apply to share consumers: share groups have no static members",
    "group_protocol": "does not apply to share consumers: share groups have their own protocol",
    "group_remote_assignor": "does not apply to share consumers: share groups have their own assignor",
    "partition_assignment_strategy": "does not apply to share consumers: the coordinator assigns the partitions",
    "revoke_mode": "does not apply to share consumers: members share partitions, so no partition is revoked",
    "exclude_internal_topics": "does not apply to share consumers: they subscribe to topics by name",
    "poll_drain_strategy": "does not apply to share consumers: the brokers choose the records of each member",
    "queued_max_bytes": "does not apply to share consumers: max.poll.records limits the records fetched ahead",
    "max_partition_fetch_bytes": "does not apply to share consumers: fetch.max.bytes covers all partitions of a broker",
    "enable_parallel_rebalance": f"does not apply to share consumers: {_NO_OFFSETS}",
    "parallel_rebalance_min_lag": f"does not apply to share consumers: {_NO_OFFSETS}",
    "parallel_rebalance_backlog_share": f"does not apply to share consumers: {_NO_OFFSETS}",
}
"""The settings of a consumer that a share consumer rejects, with the reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShareConsumerConfig(ConsumerConfig):
    """The checked settings of a share consumer."""

    group_id: str
    share_acknowledgement_mode: str = "implicit"
    share_acquire_mode: str = "batch_optimized"
    renew: str = "manual"

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> ShareConsumerConfig:
        """Parse settings as `ConsumerConfig.parse` does. Raises the same errors."""
        own: dict[str, Any] = {}
        rest: dict[Any, Any] = {}  # by the names that were given, which errors show
        names = set()
        for given, value in given_settings(config, keywords):
            name = given.strip().replace(".", "_") if isinstance(given, str) else given
            if name in REFUSED:
                raise ConfigError(f"{dotted(name)} {REFUSED[name]}")
            if name in names:
                raise ConfigError(f"{dotted(name)} is given twice")
            names.add(name)
            if name in OWN:
                own[name] = OWN[name].parse(name, value)
            else:
                _check_spelling(given, name)
                rest[given] = value
        base = ConsumerConfig.parse(rest)
        if base.group_id is None:
            raise ConfigError("group.id is missing: a share consumer needs a share group to join")
        if base.max_poll_records < 1:
            raise ConfigError(
                "max.poll.records must be at least 1: a share fetch asks the broker for that many records"
            )
        values = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
        return cls(**{**values, "enable_auto_commit": False, **own})


def _check_spelling(given: Any, name: Any) -> None:
    if isinstance(name, str) and name not in {field.name for field in dataclasses.fields(ConsumerConfig)}:
        close = difflib.get_close_matches(name, OWN, n=1, cutoff=0.6)
        if close:
            raise ConfigError(f"unknown setting {given}: did you mean {spelled_like(given, close[0])}?")
