"""The requests that only a survey of the whole cluster sends, besides those in `admin_messages.py`."""

from __future__ import annotations

import dataclasses

from .bulk_responses import read_list_offsets, read_metadata, read_offset_fetch
from .messages import LIST_OFFSETS, METADATA, OFFSET_FETCH, Api

DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", 2, 4)
STREAMS_GROUP_DESCRIBE = Api(89, "StreamsGroupDescribe", 0, 0)

# Requests that other parts send, too, with readers for many partitions. From version 10 on, OffsetFetch has topic ids.
ALL_METADATA = dataclasses.replace(METADATA, read_usual=read_metadata)
MANY_OFFSETS = dataclasses.replace(LIST_OFFSETS, read_usual=read_list_offsets)
MANY_COMMITS = dataclasses.replace(OFFSET_FETCH, highest=9, read_usual=read_offset_fetch)

SURVEY_APIS = (DESCRIBE_LOG_DIRS, STREAMS_GROUP_DESCRIBE)
