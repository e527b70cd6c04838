"""The error of the local broker."""

from __future__ import annotations

import errno
from pathlib import Path

from ..errors import HeadraceError


class LocalBrokerError(HeadraceError):
    """An operation on the local broker failed. The message says why, and what to do."""


def storage_error(error: OSError, path: Path, what: str, advice: str = "choose another directory") -> LocalBrokerError:
    """The error for a failed write below `path`, with advice."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full_disk(path, what, advice)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LocalBrokerError(f"{what} {path} is not writable ({error.strerror}): {advice}")
    return LocalBrokerError(f"{what} {path} cannot be used ({error.strerror or error}): {advice}")


def full_disk(path: Path, what: str, advice: str = "choose another directory") -> LocalBrokerError:
    return LocalBrokerError(f"no space left on the disk that holds {what} {path}: free some, or {advice}")
