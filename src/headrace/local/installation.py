"""Software that is downloaded once, to the user's cache.

    <cache>/kafka-4.3.1/...            the files of one version
    <cache>/kafka-4.3.1/manifest.json  names and sizes of these files; written last
    <cache>/kafka-4.3.1.lock           held by the process that downloads

The files are downloaded to a temporary directory, which is renamed when it is complete. A crash, a full disk or a
second process therefore never leaves an incomplete installation. A complete installation is only read: without the
lock, without network, and also from a read-only file system.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .errors import LocalBrokerError, storage_error
from .filelock import FileLock
from .ivy import DownloadProgress, ProgressCallback
from .paths import cache_dir

_LAYOUT = 1
_DOWNLOAD_WITHIN = 900.0


def installation_of(name: str) -> Path:
    """The directory of an installation, such as `kafka-4.3.1`, whether it exists or not."""
    return cache_dir() / name


def lock_path_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def is_complete(path: Path) -> bool:
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        return manifest["layout"] == _LAYOUT and all(
            (path / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def install_once(path: Path, product: str, fill: Callable[[Path, Path], None], progress: ProgressCallback) -> None:
    """Create the installation `path` unless it is complete. `fill(home, scratch)` writes its files to the directory
    `home`, and may leave anything in `scratch`.

    Several processes may call it at the same time: one downloads, the others wait. Raises `LocalBrokerError`.
    """
    if is_complete(path):
        return
    cache = path.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(lock_path_of(path)) as lock:
            if not lock.acquire(
                _DOWNLOAD_WITHIN, on_wait=lambda: progress(DownloadProgress("waiting for another process", 0))
            ):
                raise LocalBrokerError(
                    f"another process has been downloading {product} into {cache} for {_DOWNLOAD_WITHIN:g} s: "
                    "end it, or set HEADRACE_CACHE to another directory"
                )
            if not is_complete(path):
                _create(path, fill)
    except OSError as error:
        raise storage_error(error, cache, "the cache directory", "set HEADRACE_CACHE to another directory") from error


def _create(path: Path, fill: Callable[[Path, Path], None]) -> None:
    """The caller holds the lock: no other process creates or removes files of this version."""
    prefix = f".{path.name}-"
    for left_by_a_crash in path.parent.glob(prefix + "*"):
        shutil.rmtree(left_by_a_crash, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    try:
        fresh = scratch / "home"
        fresh.mkdir()
        fill(fresh, scratch)
        files = (file for file in fresh.rglob("*") if file.is_file())
        sizes = {str(file.relative_to(fresh)): file.stat().st_size for file in files}
        (fresh / "manifest.json").write_text(json.dumps({"layout": _LAYOUT, "files": sizes}, indent=1))
        if path.exists():
            # It is damaged or has an old layout. Rename it first, so that no process sees it partly deleted.
            path.rename(scratch / "old")
        fresh.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
