"""Picks the version of each request: the highest that both client and broker support."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import UnsupportedVersionError
from .messages import (
    API_VERSIONS,
    FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    Api,
)


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerVersions:
    """The versions that one broker supports, by API key.

    `features` are the levels of the cluster's finalized features, such as transaction.version. `features_epoch` is
    higher after each change of a feature, and -1 if the broker does not know them: of several brokers, the one with the
    highest epoch is up to date.
    """

    host: str
    ranges: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = dataclasses.field(default_factory=dict)
    features_epoch: int = -1

    @classmethod
    def from_response(cls, host: str, response: Any) -> BrokerVersions:
        ranges = {item.api_key: (item.min_version, item.max_version) for item in response.api_keys}
        # Versions 0 to 2 of the response have no features.
        epoch: int = getattr(response, "finalized_features_epoch", -1)
        features = getattr(response, "finalized_features", ()) if epoch >= 0 else ()
        return cls(host, ranges, {item.name: item.max_version_level for item in features}, epoch)

    def pick(self, api: Api, highest: int | None = None) -> int:
        """The version to use, at most `highest` if given. Raises UnsupportedVersionError if there is none."""
        if api.key not in self.ranges:
            raise UnsupportedVersionError(
                f"the broker at {self.host} does not support the request {api}: it needs Kafka {_oldest(api)} or later"
            )
        lowest, top = self.ranges[api.key]
        ours = api.highest if highest is None else min(api.highest, highest)
        version = min(top, ours)
        if version < max(lowest, api.lowest):
            is_old = top < api.lowest
            raise UnsupportedVersionError(
                f"the broker at {self.host} supports {api} versions {lowest} to {top}, headrace {api.lowest} to "
                f"{ours}{self._too_old(api) if is_old else ': upgrade headrace'}"
            )
        return version

    def _too_old(self, api: Api) -> str:
        """What else is missing, and what to do. Not only old brokers lack versions."""
        tops = {each: self.ranges[each.key][1] for each in _NEEDED if each is not api and each.key in self.ranges}
        lacks = [f"{each} {each.lowest} (it has {top})" for each, top in tops.items() if top < each.lowest]
        also = f". It also lacks {', '.join(lacks)}" if lacks else ""
        return (
            f"{also}: upgrade the broker (Kafka {_oldest(api)} or later). A service that is not Apache Kafka, such as "
            "Azure Event Hubs, cannot be used without these versions"
        )


# What nearly all programs need.
_NEEDED = (PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP)


def _oldest(api: Api) -> str:
    """The first version of Kafka with this request."""
    if api.name.startswith("ConsumerGroup"):
        return "4.0"  # KIP-848
    return "4.1" if api.name.startswith("Share") else "3.1"


def next_api_versions_attempt(tried: int, response: Any) -> int | None:
    """The version of the next ApiVersions request after UNSUPPORTED_VERSION: the broker's highest, which the response
    contains. None if there is no version left to try."""
    supported = [item.max_version for item in response.api_keys if item.api_key == API_VERSIONS.key]
    version = min(supported[0] if supported else 0, API_VERSIONS.highest)
    return version if API_VERSIONS.lowest <= version < tried else None
