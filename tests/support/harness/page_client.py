"""Requests to the page of `headrace ui`, with any headers, and its event streams."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

_TIMEOUT = 20.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class PageClient:
    """For one server. It sends exactly the given headers, besides Host, from the address `source` if it is given."""

    def __init__(self, url: str, source: str | None = None) -> None:
        self._source = None if source is None else (source, 0)
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.host, self.port = parts.hostname, parts.port or 80

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, _TIMEOUT, self._source)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})

    def log_in(self, secret: object, **headers: str) -> Answer:
        given = {"content-type": "application/json", **{name.replace("_", "-"): it for name, it in headers.items()}}
        return self.ask("POST", "/login", given, json.dumps({"secret": secret}).encode())

    def confirm(self, stream: object) -> Answer:
        """That its events are read."""
        return self.ask(
            "POST", "/api/reading", {"content-type": "application/json"}, json.dumps({"stream": stream}).encode()
        )

    @contextmanager
    def events(self, view: str, headers: dict[str, str] | None = None, **query: str) -> Iterator[EventReader]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT)
        try:
            connection.request("GET", f"/events?{urlencode({'view': view, **query})}", headers=headers or {})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield EventReader(response)
        finally:
            connection.close()


class EventReader:
    """The patches of a stream. `head` and `rows` are what a browser would show."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.head: dict[str, Any] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    def next(self) -> dict[str, Any] | None:
        """The next patch; None at the end of the stream."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                patch: dict[str, Any] = json.loads(line[6:])
                self._apply(patch)
                return patch
        return None

    def _apply(self, patch: dict[str, Any]) -> None:
        if patch.get("missing"):
            return
        if patch.get("reset"):
            self.head, self.rows = {}, {}
        _merge(self.head, patch["head"])
        for name, fields in patch["rows"].items():
            _merge(self.rows.setdefault(name, {}), fields)
        for name in patch["gone"]:
            del self.rows[name]


def _merge(into: dict[str, Any], fields: dict[str, Any]) -> None:
    """As static/live.js does it."""
    for name, value in fields.items():
        if isinstance(value, dict) and "add" in value:
            value = {**into[name], "points": [*into[name]["points"][value["drop"] :], *value["add"]]}
        into[name] = value
