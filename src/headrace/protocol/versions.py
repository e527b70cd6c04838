"""Which version of each request to speak with a broker: the highest that both sides know."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import UnsupportedVersionError
from .messages import API_VERSIONS, Api


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerVersions:
    """What one broker said that it can speak, by API key."""

    host: str
    ranges: Mapping[int, tuple[int, int]]

    @classmethod
    def from_response(cls, host: str, response: Any) -> BrokerVersions:
        return cls(host, {item.api_key: (item.min_version, item.max_version) for item in response.api_keys})

    def pick(self, api: Api, highest: int | None = None) -> int:
        """The version to use, never above `highest` if that is given.

        Raises UnsupportedVersionError when there is none.
        """
        if api.key not in self.ranges:
            raise UnsupportedVersionError(
                f"the broker at {self.host} does not know the request {api} at all: "
                f"headrace needs Apache Kafka 3.1 or newer"
            )
        lowest, top = self.ranges[api.key]
        ours = api.highest if highest is None else min(api.highest, highest)
        version = min(top, ours)
        if version < max(lowest, api.lowest):
            raise UnsupportedVersionError(
                f"the broker at {self.host} speaks {api} versions {lowest} to {top}, headrace {api.lowest} to "
                f"{ours}: "
                + ("upgrade the broker (Apache Kafka 3.1 or newer)" if top < api.lowest else "upgrade headrace")
            )
        return version


def next_api_versions_attempt(tried: int, response: Any) -> int | None:
    """The version to ask ApiVersions with after UNSUPPORTED_VERSION: the broker's own highest, told in the
    answer. None when there is nothing left to try."""
    told = [item.max_version for item in response.api_keys if item.api_key == API_VERSIONS.key]
    version = min(told[0] if told else 0, API_VERSIONS.highest)
    return version if API_VERSIONS.lowest <= version < tried else None
