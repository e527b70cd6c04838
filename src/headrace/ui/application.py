"""The answers to browsers.

/  /groups  /group  /topics  /topic  /activity      the page: one document, whose script reads the address
/static/FILE                              its files
/events?view=group&name=NAME              its data: server-sent events
/api/records?topic=TOPIC&count=COUNT      the newest records of a topic, as JSON
/api/reading                              POST {"stream"}: a page confirms that it reads its events
/login  /logout                           with a password or a token only
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import HeadraceError
from .access import SESSION_SECONDS, PageAccess
from .change_requests import change_routes
from .changes import GroupChanges
from .compression import accepts_gzip, compressed
from .feed import Feed, ViewName
from .guard import TOO_MANY, Guard, SecretCheck, client_of
from .json_body import read_json
from .open_streams import MOST as MOST_STREAMS
from .open_streams import OpenStreams
from .records import MOST, RecordReader
from .static_files import StaticFile, read_static_files
from .streams import EventStream

_PAGES = ("/", "/groups", "/group", "/topics", "/topic", "/activity")
_VIEWS = ("groups", "group", "topics", "topic", "activity")
_LONGEST_NAME = 4096


def make_application(
    feed: Feed,
    records: RecordReader,
    access: PageAccess,
    *,
    cookie: str,
    changes: GroupChanges | None = None,
) -> Starlette:
    check = SecretCheck(access)
    pages = _Pages(feed, records)
    login = _Login(access, check, cookie)
    routes = [
        *(Route(path, pages.page) for path in _PAGES),
        Route("/static/{name}", pages.file),
        Route("/events", pages.events),
        Route("/api/records", pages.newest_records),
        Route("/api/reading", pages.confirm, methods=["POST"]),
        Route("/login", login.page, methods=["GET"]),
        Route("/login", login.log_in, methods=["POST"]),
        Route("/logout", login.log_out, methods=["POST"]),
        *(() if changes is None else change_routes(changes)),
    ]
    guard = Middleware(Guard, access=access, check=check, cookie=cookie)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _answer_error})


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class _Pages:
    def __init__(self, feed: Feed, records: RecordReader) -> None:
        self._feed = feed
        self._records = records
        self._files = read_static_files()
        self._streams = OpenStreams()

    async def page(self, request: Request) -> Response:
        return _file_response(request, self._files["index.html"])

    async def file(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "There is no such file.")
        return _file_response(request, found)

    async def events(self, request: Request) -> Response:
        kind = request.query_params.get("view", "")
        if kind not in _VIEWS:
            raise HTTPException(400, f"view must be one of {', '.join(_VIEWS)}.")
        name = ViewName(kind, _name(request, "name"), request.query_params.get("checkpoint") == "1")
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        stream = EventStream(self._feed, name, secrets.token_hex(8), compresses=accepts_gzip(request.headers))
        return _Registered(stream, self._streams)

    async def confirm(self, request: Request) -> Response:
        stream = (await read_json(request)).get("stream")
        if not isinstance(stream, str):
            raise HTTPException(400, 'The body must be {"stream": "…"}.')
        return Response(status_code=204 if self._streams.confirm(stream, time.monotonic()) else 404)

    async def newest_records(self, request: Request) -> Response:
        topic = _name(request, "topic")
        count = request.query_params.get("count", "20")
        if not topic or not count.isascii() or not count.isdigit() or len(count) > 9 or not 1 <= int(count) <= MOST:
            raise HTTPException(400, f"topic is missing, or count is not a number from 1 to {MOST}.")
        try:
            return _json_response(request, {"records": await self._records.newest(topic, int(count))})
        except TimeoutError:
            raise HTTPException(504, "The brokers did not answer in time.") from None
        except HeadraceError as error:
            raise HTTPException(502, str(error)) from None


class _Registered(Response):
    """A stream that is registered while it is sent."""

    def __init__(self, stream: EventStream, streams: OpenStreams) -> None:
        super().__init__()
        self._stream = stream
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._streams.open(self._stream.name, time.monotonic(), self._stream.end):
            error = {"error": f"There are already {MOST_STREAMS} open pages."}
            await JSONResponse(error, 503, {"retry-after": "5"})(scope, receive, send)
            return
        try:
            await self._stream(scope, receive, send)
        finally:
            self._streams.close(self._stream.name)


class _Login:
    def __init__(self, access: PageAccess, check: SecretCheck, cookie: str) -> None:
        self._access = access
        self._check = check
        self._cookie = cookie
        self._page: StaticFile = read_static_files()["login.html"]

    async def page(self, request: Request) -> Response:
        return _file_response(request, self._page)

    async def log_in(self, request: Request) -> Response:
        if not self._access.needs_login:
            return Response(status_code=204)
        status = await self._check.answer(await _secret(request), client_of(request.scope))
        if status == 429:
            raise HTTPException(status, TOO_MANY, {"retry-after": "1"})
        if status != 200:
            raise HTTPException(status, "This is not the password or token.")
        response = Response(status_code=204)
        response.set_cookie(
            self._cookie,
            self._access.new_session(time.time()),
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
        )
        return response

    async def log_out(self, request: Request) -> Response:
        response = Response(status_code=204)
        response.delete_cookie(self._cookie, httponly=True, samesite="strict")
        return response


async def _secret(request: Request) -> str:
    secret = (await read_json(request)).get("secret")
    if not isinstance(secret, str):
        raise HTTPException(400, 'The body must be {"secret": "…"}.')
    return secret


def _name(request: Request, parameter: str) -> str:
    name = request.query_params.get(parameter, "")
    if len(name) > _LONGEST_NAME:
        raise HTTPException(400, f"{parameter} is too long.")
    return name


def _file_response(request: Request, file: StaticFile) -> Response:
    headers = {"etag": file.etag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if file.compressed is not None and accepts_gzip(request.headers):
        return Response(file.compressed, media_type=file.media_type, headers={**headers, "content-encoding": "gzip"})
    return Response(file.body, media_type=file.media_type, headers=headers)


def _json_response(request: Request, value: Any) -> Response:
    response = JSONResponse(value, headers={"vary": "accept-encoding"})
    if accepts_gzip(request.headers) and (body := compressed(bytes(response.body))) is not None:
        headers = {"vary": "accept-encoding", "content-encoding": "gzip"}
        return Response(body, media_type="application/json", headers=headers)
    return response
