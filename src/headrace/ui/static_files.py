"""The files of the page, read once into memory: no request can name another file."""

from __future__ import annotations

import dataclasses
import hashlib
from importlib import resources

from .compression import compressed

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclasses.dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes = dataclasses.field(repr=False)
    media_type: str
    etag: str
    compressed: bytes | None = dataclasses.field(default=None, repr=False)
    """With gzip, if that is smaller."""


def read_static_files() -> dict[str, StaticFile]:
    """All files by their names."""
    found = {}
    for entry in resources.files(__package__).joinpath("static").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if entry.is_file() and suffix in _TYPES:
            body = entry.read_bytes()
            found[entry.name] = StaticFile(
                body, _TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"', compressed(body, 9)
            )
    return found
