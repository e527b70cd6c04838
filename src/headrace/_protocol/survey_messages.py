"""The requests that only a survey of the whole cluster sends, besides those in `admin_messages.py`."""

from __future__ import annotations

from .messages import Api

DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", 2, 4)
STREAMS_GROUP_DESCRIBE = Api(89, "StreamsGroupDescribe", 0, 0)

SURVEY_APIS = (DESCRIBE_LOG_DIRS, STREAMS_GROUP_DESCRIBE)
