"""The requests that change groups, all of them POST with a body in JSON, which a form of another site cannot send.

/api/groups/plan     {"group", "to", "topic"?, "backlog"?}    what a reset would change; changes nothing
/api/groups/apply    {"plan": NUMBER}                         carries it out
/api/groups/warning  {"group"}                                what a deletion would break; changes nothing
/api/groups/delete   {"group", "confirm", "warned"?}          the name of the group, twice; true if the warning was read
"""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..errors import ConfigError, HeadraceError
from .changes import GroupChanges
from .json_body import read_json


def change_routes(changes: GroupChanges) -> list[Route]:
    requests = _Requests(changes)
    answers = {
        "plan": requests.plan,
        "apply": requests.apply,
        "warning": requests.warning,
        "delete": requests.delete,
    }
    return [Route(f"/api/groups/{name}", answer, methods=["POST"]) for name, answer in answers.items()]


class _Requests:
    def __init__(self, changes: GroupChanges) -> None:
        self._changes = changes

    async def plan(self, request: Request) -> Response:
        body = await read_json(request)
        group, to = _text(body, "group"), _text(body, "to")
        topic, backlog = _optional_text(body, "topic"), _optional_text(body, "backlog")
        try:
            return JSONResponse(await self._changes.plan(group, to, topic, backlog))
        except (HeadraceError, ValueError) as error:
            raise _refused(error) from None

    async def apply(self, request: Request) -> Response:
        number = (await read_json(request)).get("plan")
        if type(number) is not int:
            raise HTTPException(400, "plan must be a number.")
        try:
            return JSONResponse({"partitions": await self._changes.apply(number)})
        except HeadraceError as error:
            raise _refused(error) from None

    async def warning(self, request: Request) -> Response:
        group = _text(await read_json(request), "group")
        try:
            return JSONResponse({"warning": await self._changes.warning(group)})
        except HeadraceError as error:
            raise _refused(error) from None

    async def delete(self, request: Request) -> Response:
        body = await read_json(request)
        group = _text(body, "group")
        if _text(body, "confirm") != group:
            raise HTTPException(400, "confirm must be the name of the group.")
        try:
            return JSONResponse(
                {"deleted": list(await self._changes.delete(group, is_warned=body.get("warned") is True))}
            )
        except HeadraceError as error:
            raise _refused(error) from None


def _refused(error: Exception) -> HTTPException:
    return HTTPException(400 if isinstance(error, ConfigError | ValueError) else 409, str(error))


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise HTTPException(400, f"{name} must be text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise HTTPException(400, f"{name} contains a surrogate, which is not a character.") from None
    return value


def _optional_text(body: dict[str, Any], name: str) -> str | None:
    return None if body.get(name) in (None, "") else _text(body, name)
