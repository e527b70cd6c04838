"""The settings of a group that its coordinator keeps, such as share.auto.offset.reset."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..._protocol.admin_messages import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from ..._protocol.codes import NONE, kafka_error
from ..._protocol.messages import exactly_one
from ..._security.exchanges import quoted
from ...admin import GroupSetting
from .client import AdminClient

_GROUP = 32  # the resource type
_SET, _DELETE = 0, 1
_OF_THIS_GROUP = 8  # the source DYNAMIC_GROUP_CONFIG
_PROPAGATION = 5.0  # seconds until the coordinator knows a change that the controller has accepted


class GroupConfigs:
    def __init__(self, client: AdminClient) -> None:
        self._client = client

    async def describe(self, group: str, timeout: float | None) -> dict[str, GroupSetting]:
        return await self._client.retried(f"settings of group {group}", timeout, lambda: self._describe(group))

    async def _describe(self, group: str) -> dict[str, GroupSetting]:
        """Asks the coordinator: other brokers may not know the latest changes yet."""
        doing = f"settings of group {group}"
        node = await self._client.coordinator(group)
        asked = {"resource_type": _GROUP, "resource_name": group, "configuration_keys": None}
        fields = {"resources": [asked], "include_synonyms": False, "include_documentation": False}
        answer = exactly_one((await self._client.call(node, DESCRIBE_CONFIGS, fields)).results, doing)
        _check(answer, doing)
        return {
            each.name: GroupSetting(each.name, each.value, each.config_source != _OF_THIS_GROUP)
            for each in sorted(answer.configs, key=lambda each: each.name)
        }

    async def alter(self, group: str, settings: Mapping[str, str | None], timeout: float | None) -> None:
        """None as the value removes a setting: its default applies again. Returns when the coordinator knows it."""
        doing = f"IncrementalAlterConfigs of group {group}"
        changes = [
            {"name": name, "config_operation": _DELETE if value is None else _SET, "value": value}
            for name, value in settings.items()
        ]
        resource = {"resource_type": _GROUP, "resource_name": group, "configs": changes}

        async def ask() -> None:
            body = await self._client.call_any(
                INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False}
            )
            _check(exactly_one(body.responses, doing), doing)

        await self._client.retried(doing, timeout, ask)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PROPAGATION
        failures = 0
        while not self._is_known(await self.describe(group, timeout), settings) and loop.time() < deadline:
            failures += 1
            await asyncio.sleep(self._client.network.retries.pause(failures))

    def _is_known(self, found: Mapping[str, GroupSetting], settings: Mapping[str, str | None]) -> bool:
        return all(
            name not in found
            or (found[name].is_default if value is None else not found[name].is_default and found[name].value == value)
            for name, value in settings.items()
        )


def _check(answer: Any, doing: str) -> None:
    if answer.error_code != NONE:
        raise kafka_error(answer.error_code, doing, quoted(answer.error_message or ""))
