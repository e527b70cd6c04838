"""Requests and responses as the receiver sees them: plain fields for the coordinator, kio entities for the member.

With `through_bytes` both are really encoded and decoded, by headrace for the member and by kio for the coordinator.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Mapping
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v2.header import RequestHeader
from kio.serial import entity_reader

from headrace._protocol.messages import (
    CONSUMER_GROUP_HEARTBEAT,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
    Api,
    decode_response,
    encode_request,
)
from support.brokers.fake_broker import frame
from support.brokers.kio_entities import build

Fields = Mapping[str, Any]

_NOBODY = {"error_code": 0, "throttle_time": 0}
_DEFAULTS: dict[Api, Fields] = {
    JOIN_GROUP: {**_NOBODY, "protocol_type": None, "protocol_name": None, "leader": "", "member_id": "", "members": ()},
    SYNC_GROUP: {**_NOBODY, "assignment": b""},
    HEARTBEAT: _NOBODY,
    LEAVE_GROUP: {**_NOBODY, "members": ()},
    CONSUMER_GROUP_HEARTBEAT: {**_NOBODY, "member_epoch": 0, "heartbeat_interval": 0},
}


def request(api: Api, fields: Fields, through_bytes: bool) -> Fields:
    """The request as the coordinator sees it."""
    return _plain(_read_request(api, fields)) if through_bytes else fields


def answer(api: Api, fields: Fields, through_bytes: bool = False) -> Any:
    """The response as the member sees it."""
    entity = build(_response(api), {**_DEFAULTS[api], **fields})
    return decode_response(api, api.highest, memoryview(frame(1, entity))[4:]) if through_bytes else entity


@functools.cache
def _response(api: Api) -> type[Any]:
    return load_response_schema(api.key, api.highest)


def _read_request(api: Api, fields: Fields) -> Any:
    raw = bytes(encode_request(api, api.highest, 1, "simulation", fields)[4:])
    _, at = entity_reader(RequestHeader)(raw, 0)
    found, size = entity_reader(load_request_schema(api.key, api.highest))(raw, at)
    assert at + size == len(raw), f"{api}: bytes are left"
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    return value
