"""Names of the semantic conventions for messaging and Kafka, version 1.44.0 (status: development).

https://github.com/open-telemetry/semantic-conventions/blob/v1.44.0/docs/messaging/kafka.md
"""

from __future__ import annotations

from ..config.client import ClientConfig
from ..errors import KafkaError

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
GROUP = "messaging.consumer.group.name"
CLIENT_ID = "messaging.client.id"
MESSAGE_COUNT = "messaging.batch.message_count"
OFFSET = "messaging.kafka.offset"
TOMBSTONE = "messaging.kafka.message.tombstone"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
# Not of the conventions, which have nothing for these.
ATTEMPT = "headrace.attempt"
ACKNOWLEDGEMENT = "headrace.acknowledgement"
LANE = "headrace.lane"

CONSUMED_MESSAGES = "messaging.client.consumed.messages"
SENT_MESSAGES = "messaging.client.sent.messages"
OPERATION_DURATION = "messaging.client.operation.duration"
PROCESS_DURATION = "messaging.process.duration"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

Attributes = dict[str, str | int | bool]


def common_attributes(config: ClientConfig, group_id: str | None = None) -> Attributes:
    """Of all metrics of a client. The server is the first one of bootstrap.servers."""
    host, port = config.bootstrap_servers[0]
    found: Attributes = {SYSTEM: "kafka", SERVER_ADDRESS: host, SERVER_PORT: port}
    return found if group_id is None else {**found, GROUP: group_id}


def operation(name: str, kind: str) -> Attributes:
    return {OPERATION_NAME: name, OPERATION_TYPE: kind}


def error_type(error: BaseException) -> str:
    """The name of Kafka's error code, or the class of the error."""
    if isinstance(error, KafkaError):
        return error.name
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
