"""The body of a request, as JSON, bounded in length and time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

_LONGEST = 4096
_WITHIN = 10.0  # seconds


async def read_json(request: Request) -> dict[str, Any]:
    """An object. Raises HTTPException for anything else, also for a form, which another site could send."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "The body must be JSON.")
    body = b""
    try:
        async with asyncio.timeout(_WITHIN):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _LONGEST:
                    raise HTTPException(413, "The body is too long.")
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {_WITHIN:.0f} s.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The body is not complete.") from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, "The body must be an object in JSON.")
    return found
