"""What one admin client has on its event loop: its connections, and one object for each subject."""

from __future__ import annotations

import logging

from ..._machines.lanes.commit_metadata import BACKLOG_SUFFIX, is_progress_of
from ...config.consumer import ConsumerConfig
from ...errors import AuthorizationError, HeadraceError
from .client import AdminClient
from .group_configs import GroupConfigs
from .groups import Groups
from .offsets import GroupCommits
from .resets import Resets
from .share_groups import ShareGroupOffsets
from .topics import Topics

log = logging.getLogger(__name__)


class AdminRuntime:
    """Belongs to the loop on which it was created."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.client = client = AdminClient(config)
        self.topics = Topics(client)
        self.groups = Groups(client)
        self.offsets = GroupCommits(client, self.groups)
        self.share_offsets = ShareGroupOffsets(client, self.groups)
        self.configs = GroupConfigs(client)
        self.resets = Resets(client, self.topics, self.groups, self.offsets, self.share_offsets)

    async def delete_group(self, group: str, timeout: float | None) -> tuple[str, ...]:
        """The group itself comes first: without the progress in the second group, its backlog would be repeated."""
        await self.groups.delete(group, timeout)
        second = group + BACKLOG_SUFFIX
        try:
            progress = await self.offsets.committed(second, timeout)
            if not progress or not all(is_progress_of(each, group) for each in progress.values()):
                return (group,)  # there is none, or it is somebody else's, with a name like ours
            await self.groups.delete(second, timeout)
        except HeadraceError as error:
            if not isinstance(error, AuthorizationError):
                log.warning(
                    "group %s was deleted, but perhaps not the group of its backlog, %s: %s", group, second, error
                )
            return (group,)
        return group, second

    def abandon(self) -> None:
        self.client.network.disconnect()

    async def close(self) -> None:
        try:
            await self.client.network.close()
        finally:
            self.abandon()
