"""Settings of a share consumer: those of a consumer that make sense to it, and a few of its own.

What a share group starts with, how it isolates transactions, how long a lock lasts and how often a record is
delivered are settings of the group, kept by the brokers (`kafka-configs --entity-type groups`).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from .config import ConsumerConfig, dotted
from .errors import ConfigError
from .setting_kinds import given_settings


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A setting of a few words. The first is the default."""

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
        "How records are acknowledged: those of a poll() by the next one, or each by acknowledge().",
    ),
    "share_acquire_mode": Choice(
        ("batch_optimized", "record_limit"),
        "What a fetch acquires: whole batches, so perhaps more than max.poll.records, or never more (KIP-1206).",
    ),
    "renew": Choice(
        ("manual", "auto"),
        "With auto, the locks of what poll() returned are renewed in the background until it is acknowledged, or "
        "max.poll.interval.ms have passed; in explicit mode, poll() may then be called with records still at work.",
    ),
}
"""What only a share consumer has."""

_BY_GROUP = "is a setting of the group, which the brokers keep"
_NOT_SHARED = "a share group has no offsets of its members"
REFUSED = {
    "auto_offset_reset": f"{_BY_GROUP}: share.auto.offset.reset",
    "isolation_level": f"{_BY_GROUP}: share.isolation.level",
    "session_timeout_ms": f"{_BY_GROUP}: share.session.timeout.ms",
    "heartbeat_interval_ms": f"{_BY_GROUP}: share.heartbeat.interval.ms",
    "enable_auto_commit": f"does not exist here: {_NOT_SHARED}; see share.acknowledgement.mode",
    "auto_commit_interval_ms": f"does not exist here: {_NOT_SHARED}; see share.acknowledgement.mode",
    "commit_mode": f"does not exist here: {_NOT_SHARED}; see share.acknowledgement.mode",
    "group_instance_id": "does not exist here: share groups have no static members",
    "group_protocol": "does not exist here: a share group has a protocol of its own",
    "group_remote_assignor": "does not exist here: a share group has an assignor of its own",
    "partition_assignment_strategy": "does not exist here: the coordinator of a share group assigns",
    "revoke_mode": "does not exist here: partitions are shared, and none has to be given up",
    "exclude_internal_topics": "does not exist here: a share group subscribes to topics by name",
    "poll_drain_strategy": "does not exist here: the brokers decide what a member gets",
    "queued_max_bytes": "does not exist here: what is fetched ahead goes by max.poll.records",
    "max_partition_fetch_bytes": "does not exist here: fetch.max.bytes is shared by the partitions of a broker",
    "enable_parallel_rebalance": f"does not exist here: {_NOT_SHARED}",
    "parallel_rebalance_min_lag": f"does not exist here: {_NOT_SHARED}",
    "parallel_rebalance_backlog_share": f"does not exist here: {_NOT_SHARED}",
}
"""What a consumer has and a share consumer does not, with the reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShareConsumerConfig(ConsumerConfig):
    """The settings of a share consumer, after checking."""

    group_id: str
    share_acknowledgement_mode: str = "implicit"
    share_acquire_mode: str = "batch_optimized"
    renew: str = "manual"

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> ShareConsumerConfig:
        """As `ConsumerConfig.parse`. Raises ConfigError."""
        own: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for given, value in given_settings(config, keywords):
            name = given.strip().replace(".", "_") if isinstance(given, str) else given
            if name in REFUSED:
                raise ConfigError(f"{dotted(name)} {REFUSED[name]}")
            if name in own or name in rest:
                raise ConfigError(f"{dotted(name)} is given twice")
            if name in OWN:
                own[name] = OWN[name].parse(name, value)
            else:
                _check_spelling(given, name)
                rest[name] = value
        base = ConsumerConfig.parse(rest)
        if base.group_id is None:
            raise ConfigError("group.id is missing: a share consumer is a member of a share group")
        if base.max_poll_records < 1:
            raise ConfigError("max.poll.records must be at least 1: it is what a broker is asked for")
        values = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
        return cls(**{**values, "enable_auto_commit": False, **own})


def _check_spelling(given: Any, name: Any) -> None:
    if isinstance(name, str) and name not in {field.name for field in dataclasses.fields(ConsumerConfig)}:
        close = difflib.get_close_matches(name, OWN, n=1, cutoff=0.6)
        if close:
            raise ConfigError(f"unknown setting {given}: did you mean {dotted(close[0])}?")
