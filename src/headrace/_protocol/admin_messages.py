"""The requests that only an admin client sends: about topics, and about groups that it is not a member of."""

from __future__ import annotations

from .messages import Api

DESCRIBE_GROUPS = Api(15, "DescribeGroups", 5, 6)
LIST_GROUPS = Api(16, "ListGroups", 4, 5)
CREATE_TOPICS = Api(19, "CreateTopics", 7, 7)
DELETE_TOPICS = Api(20, "DeleteTopics", 6, 6)
DESCRIBE_ACLS = Api(29, "DescribeAcls", 2, 3)
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", 4, 4)
DELETE_GROUPS = Api(42, "DeleteGroups", 2, 2)
INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", 1, 1)
CONSUMER_GROUP_DESCRIBE = Api(69, "ConsumerGroupDescribe", 0, 1)
SHARE_GROUP_DESCRIBE = Api(77, "ShareGroupDescribe", 1, 1)
# Version 0, of Kafka 4.1, does not return the lag.
DESCRIBE_SHARE_GROUP_OFFSETS = Api(90, "DescribeShareGroupOffsets", 0, 1)
ALTER_SHARE_GROUP_OFFSETS = Api(91, "AlterShareGroupOffsets", 0, 0)
DELETE_SHARE_GROUP_OFFSETS = Api(92, "DeleteShareGroupOffsets", 0, 0)

ADMIN_APIS = (
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CONFIGS,
    DELETE_GROUPS,
    INCREMENTAL_ALTER_CONFIGS,
    CONSUMER_GROUP_DESCRIBE,
    SHARE_GROUP_DESCRIBE,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
)
