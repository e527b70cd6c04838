"""The requests that headrace sends: their keys and versions, and how requests are encoded and responses decoded.

A request is described once, by a mapping with the field names of the newest version: see `writer.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.index import load_request_schema, load_response_schema

from ..errors import EncodingError, ProtocolError
from . import reader
from .produce_response import read_appended
from .writer import writer_of


@dataclasses.dataclass(frozen=True, slots=True)
class Api:
    """A kind of request, with the range of versions that headrace supports."""

    key: int
    name: str
    lowest: int
    highest: int
    read_usual: Callable[[int, memoryview], Any] | None = None
    """A faster reader of the usual response, from its version and frame. It returns None for any other one."""

    def __str__(self) -> str:
        return self.name


# The lowest versions are those of Kafka 3.1, the first release with topic ids in Fetch. Without topic ids, offsets of a
# deleted topic could be mistaken for offsets of a new topic of the same name.
PRODUCE = Api(0, "Produce", 9, 13, read_appended)
FETCH = Api(1, "Fetch", 13, 18)
LIST_OFFSETS = Api(2, "ListOffsets", 6, 11)
METADATA = Api(3, "Metadata", 12, 13)
OFFSET_COMMIT = Api(8, "OffsetCommit", 8, 10)
OFFSET_FETCH = Api(9, "OffsetFetch", 8, 10)
FIND_COORDINATOR = Api(10, "FindCoordinator", 4, 6)
JOIN_GROUP = Api(11, "JoinGroup", 7, 9)
HEARTBEAT = Api(12, "Heartbeat", 4, 4)
LEAVE_GROUP = Api(13, "LeaveGroup", 4, 5)
SYNC_GROUP = Api(14, "SyncGroup", 5, 5)
SASL_HANDSHAKE = Api(17, "SaslHandshake", 1, 1)
API_VERSIONS = Api(18, "ApiVersions", 0, 4)
# Version 6 is for two-phase commits only, and not stable in Kafka 4.3: callers without them pick at most version 5.
INIT_PRODUCER_ID = Api(22, "InitProducerId", 4, 6)
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", 4, 4)
# The versions of the requests in transactions, Produce included, also depend on the feature transaction.version of the
# cluster: see `BrokerVersions.features`. Only brokers send version 4 and above of AddPartitionsToTxn.
ADD_PARTITIONS_TO_TXN = Api(24, "AddPartitionsToTxn", 3, 3)
ADD_OFFSETS_TO_TXN = Api(25, "AddOffsetsToTxn", 3, 4)
END_TXN = Api(26, "EndTxn", 3, 5)
TXN_OFFSET_COMMIT = Api(28, "TxnOffsetCommit", 3, 5)
# Version 0 does not return the lifetime of a login.
SASL_AUTHENTICATE = Api(36, "SaslAuthenticate", 1, 2)
OFFSET_DELETE = Api(47, "OffsetDelete", 0, 0)
DESCRIBE_PRODUCERS = Api(61, "DescribeProducers", 0, 0)
DESCRIBE_TRANSACTIONS = Api(65, "DescribeTransactions", 0, 0)
LIST_TRANSACTIONS = Api(66, "ListTransactions", 0, 2)
# Version 0 has neither client-generated member ids nor regular expressions.
CONSUMER_GROUP_HEARTBEAT = Api(68, "ConsumerGroupHeartbeat", 1, 1)
# Version 0 of these was a preview, in Kafka 4.0 only.
SHARE_GROUP_HEARTBEAT = Api(76, "ShareGroupHeartbeat", 1, 1)
SHARE_FETCH = Api(78, "ShareFetch", 1, 2)
SHARE_ACKNOWLEDGE = Api(79, "ShareAcknowledge", 1, 2)

APIS = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    SYNC_GROUP,
    SASL_HANDSHAKE,
    API_VERSIONS,
    INIT_PRODUCER_ID,
    OFFSET_FOR_LEADER_EPOCH,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    SASL_AUTHENTICATE,
    OFFSET_DELETE,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    CONSUMER_GROUP_HEARTBEAT,
    SHARE_GROUP_HEARTBEAT,
    SHARE_FETCH,
    SHARE_ACKNOWLEDGE,
)

_LENGTH = _CORRELATION = struct.Struct(">i")


@functools.cache
def _request_type(key: int, version: int) -> type[Any]:
    return load_request_schema(key, version)


@functools.cache
def _response_type(key: int, version: int) -> type[Any]:
    return load_response_schema(key, version)


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, fields: Mapping[str, Any]
) -> bytearray:
    """The frame of a request, including the four bytes of its length. Raises EncodingError if a value does not fit."""
    entity = _request_type(api.key, version)
    header = {
        "request_api_key": api.key,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    frame = bytearray(4)
    try:
        writer_of(entity.__header_schema__)(frame, header)
        writer_of(entity)(frame, fields)
    except EncodingError as error:
        raise EncodingError(f"cannot encode the request {api}: {error}") from error
    _LENGTH.pack_into(frame, 0, len(frame) - 4)
    return frame


def correlation_id_of(frame: memoryview) -> int:
    """The correlation id of the request that this response belongs to."""
    if len(frame) < 4:
        raise ProtocolError(f"a response of {len(frame)} bytes has no header")
    return int(_CORRELATION.unpack_from(frame, 0)[0])


def decode_response(api: Api, version: int, frame: memoryview) -> Any:
    """The entity of a response. Its `records` fields are views of the frame."""
    if api.read_usual is not None and (usual := api.read_usual(version, frame)) is not None:
        return usual
    entity = _response_type(api.key, version)
    _, at = reader.read_to(entity.__header_schema__, frame)
    return reader.read(entity, frame, at)


def exactly_one(items: Sequence[Any], doing: str) -> Any:
    """The only item of a response to a request about one thing. Raises ProtocolError if there is not exactly one."""
    if len(items) != 1:
        raise ProtocolError(f"{doing}: the response has {len(items)} entries instead of 1")
    return items[0]
