"""The body of a request, as JSON and bounded."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

_LONGEST = 4096


async def read_json(request: Request) -> dict[str, Any]:
    """An object. Raises HTTPException for anything else, also for a form, which another site could send."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "The body must be JSON.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST:
            raise HTTPException(413, "The body is too long.")
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, "The body must be an object in JSON.")
    return found
