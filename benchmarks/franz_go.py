"""franz-go as a reader: a program in `go/`, built once into the cache if Go is installed.

The name of the binary has a hash of its sources and of Go's version, so that a change of either builds it again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.local.paths import cache_dir

from .process import CommandFailed
from .readers import Job

SOURCE = Path(__file__).parent / "go"
MODULE = "github.com/twmb/franz-go"
# The first build downloads the modules and compiles Go's standard library.
_BUILD_WITHIN = 600.0
_ASK_WITHIN = 30.0
# Where Go's own installer puts it, which is not on every PATH.
_INSTALLED = "/usr/local/go/bin/go"


def find_go() -> str | None:
    return shutil.which("go") or (_INSTALLED if os.access(_INSTALLED, os.X_OK) else None)


def missing() -> str:
    """The reason why it cannot run here; empty if it can."""
    return "" if find_go() else "skipped: Go is not installed (no `go` on the PATH)"


def version() -> str:
    """The version of franz-go in go.mod."""
    return required_version((SOURCE / "go.mod").read_text())


def required_version(go_mod: str) -> str:
    found = re.search(rf"^\s*(?:require\s+)?{re.escape(MODULE)}\s+v(\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise ValueError(f"go.mod does not require {MODULE}")
    return found[1]


@functools.cache
def go_version() -> str:
    """As Go prints it: `go1.26.8`. Empty without Go."""
    go = find_go()
    if go is None:
        return ""
    done = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd=SOURCE, timeout=_ASK_WITHIN
    )
    return done.stdout.strip()


def binary() -> Path:
    """Where the program is, whether it is built or not."""
    sources = hashlib.sha256(go_version().encode())
    for file in sorted(SOURCE.iterdir()):
        sources.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return cache_dir() / "benchmarks" / f"franz-go-{sources.hexdigest()[:16]}"


def build() -> Path:
    """Build the program unless it exists. Raises CommandFailed."""
    found = binary()
    if os.access(found, os.X_OK):
        return found
    go = find_go()
    if go is None:
        raise CommandFailed(missing())
    found.parent.mkdir(parents=True, exist_ok=True)
    draft = found.with_suffix(f".{os.getpid()}")
    # The versions and hashes of go.mod and go.sum and the installed Go, and nothing newer.
    settings = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}
    command = [go, "build", "-trimpath", "-o", str(draft), "."]
    try:
        subprocess.run(
            command,
            cwd=SOURCE,
            env=os.environ | settings,
            check=True,
            capture_output=True,
            text=True,
            timeout=_BUILD_WITHIN,
        )
        draft.rename(found)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()]
        raise CommandFailed(f"`go build` in {SOURCE} failed: {said[-1] if said else error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"`go build` in {SOURCE} failed: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return found


def command(job: Job, *flags: str) -> list[str]:
    return [str(binary()), json.dumps(dataclasses.asdict(job)), *flags]
