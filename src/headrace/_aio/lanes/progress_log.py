"""KIP-333's second commit log: the progress of backlogs, in the group `<group.id>.backlog`.

Progress counts only together with the token in the first log. Once a plain commit has replaced the token there, nobody
needs it any more, and tools would show an ever growing lag for it. So this notes the partitions that may have progress,
and after a plain commit of one of them it is deleted.

Somebody else may have a group with that name. What this group has not written is never deleted, nor overwritten:
partitions with such a commit have one lane (`start.py`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Mapping

from ..._machines.lanes.commit_metadata import BACKLOG_SUFFIX, is_foreign, is_progress_of
from ...errors import HeadraceError, KafkaError
from ...types import OffsetAndMetadata, TopicPartition
from ..commit.offset_requests import OffsetRequests

log = logging.getLogger(__name__)

_PATIENCE = 2.0  # seconds for the deletion, which nobody needs: a coordinator may be away, and a revoke waits

Found = Mapping[TopicPartition, OffsetAndMetadata | KafkaError | None]


class ProgressLog:
    """Belongs to the loop's thread."""

    def __init__(self, requests: OffsetRequests) -> None:
        self._requests = requests
        self._noted: set[TopicPartition] = set()

    @property
    def group(self) -> str:
        return self._requests.group

    @property
    def owner(self) -> str:
        """The group whose progress it is."""
        return self.group.removesuffix(BACKLOG_SUFFIX)

    async def committed(self, partitions: Iterable[TopicPartition]) -> Found:
        return await self._requests.committed(partitions)

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], topic_ids: Mapping[str, uuid.UUID | None]
    ) -> None:
        self.note(offsets)
        await self._requests.commit(offsets, topic_ids)

    # -- what is left -------------------------------------------------------------------------------------------------

    def note(self, partitions: Iterable[TopicPartition]) -> None:
        """These may have progress: their first log has, or gets, a token."""
        self._noted.update(partitions)

    def noted(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [tp for tp in partitions if tp in self._noted]

    async def tidy(self, partitions: Iterable[TopicPartition]) -> None:
        """The first log has plain commits of these now. Raises nothing: what is left does no harm, and the next plain
        commit tries again, unless that is pointless."""
        stale = self.noted(partitions)
        if not stale:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await self._requests.committed(stale)
                own = [tp for tp, it in found.items() if isinstance(it, OffsetAndMetadata) and self.is_own(it)]
                if own:
                    await self._requests.delete(own)
        except (HeadraceError, TimeoutError) as error:
            names, why = ", ".join(map(str, stale)), str(error) or f"no response within {_PATIENCE} s"
            log.info("cannot delete the offsets of the completed backlog of %s in group %s: %s", names, self.group, why)
            if isinstance(error, TimeoutError) or error.retriable:
                return
        self._noted.difference_update(stale)

    def is_own(self, found: OffsetAndMetadata) -> bool:
        return is_progress_of(found, self.owner)

    def is_foreign(self, found: OffsetAndMetadata) -> bool:
        return is_foreign(found, self.owner)
