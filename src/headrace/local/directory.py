"""The data directory of a cluster.

<data>/headrace.json   the properties that the next start needs: cluster id, ports, number of brokers, secured or not
<data>/headrace.lock   held while the cluster runs, by this process and by the guards of the brokers
<data>/broker.log      the log of all brokers
<data>/broker-1/...    the settings and the data of broker 1
<data>/security/...    the certificates and users of a secured cluster, see secured.py
<data>/registry/...    the schemas of its registry, if it has one; the log of that is registry.log
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalBrokerError, storage_error
from .filelock import FileLock
from .settings import BrokerFiles, Ports, random_id

# If the previous owner has just died, its brokers may still be stopping.
_LOCK_WITHIN = 15.0
_LOG_ROTATES_AT = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The content of headrace.json."""

    cluster_id: str
    ports: Mapping[int, Ports]
    secure: bool = False

    def to_json(self) -> str:
        ports = {str(i): [p.client, p.controller, p.mutual] for i, p in self.ports.items()}
        return json.dumps({"cluster_id": self.cluster_id, "ports": ports, "secure": self.secure})

    @classmethod
    def from_json(cls, text: str) -> ClusterState:
        data = json.loads(text)
        ports = {int(i): Ports(*p) for i, p in data["ports"].items()}
        return cls(str(data["cluster_id"]), ports, bool(data.get("secure", False)))


class ClusterDirectory:
    """A locked data directory. Without a path it is temporary, and `close()` deletes it."""

    def __init__(
        self, path: str | os.PathLike[str] | None, broker_ids: tuple[int, ...], *, secure: bool = False
    ) -> None:
        self.temporary = path is None
        try:
            if path is None:
                self.path = Path(tempfile.mkdtemp(prefix="headrace-"))
            else:
                self.path = Path(path).expanduser().absolute()
                self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.path / "headrace.lock")
            if not self._lock.acquire(_LOCK_WITHIN):
                raise LocalBrokerError(f"another cluster is running on the data directory {self.path}")
        except OSError as error:
            where = Path(tempfile.gettempdir() if path is None else path)
            raise storage_error(error, where, "the data directory") from error
        try:
            self.state = self._load(broker_ids, secure)
        except BaseException:
            self._lock.release()
            raise

    def files(self, broker_id: int) -> BrokerFiles:
        return BrokerFiles(self.path / f"broker-{broker_id}")

    @property
    def security(self) -> Path:
        return self.path / "security"

    @property
    def default_log(self) -> Path:
        return self.path / "broker.log"

    @property
    def lock_fd(self) -> int:
        return self._lock.fileno()

    def save(self, ports: Mapping[int, Ports]) -> ClusterState:
        self.state = ClusterState(self.state.cluster_id, ports, self.state.secure)
        draft = self.path / "headrace.json.draft"
        draft.write_text(self.state.to_json())
        draft.rename(self.path / "headrace.json")
        return self.state

    def close(self, keep_log: bool = False) -> None:
        """Unlock the directory. Delete it if it is temporary, except for the log if `keep_log` is set."""
        if self.temporary and keep_log:
            for entry in (*self.path.glob("broker-*"), self.path / "security", self.path / "registry"):
                shutil.rmtree(entry, ignore_errors=True)
            for name in ("headrace.json", "headrace.lock"):
                (self.path / name).unlink(missing_ok=True)
        elif self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def _load(self, broker_ids: tuple[int, ...], secure: bool) -> ClusterState:
        path = self.path / "headrace.json"
        try:
            state = ClusterState.from_json(path.read_text())
        except FileNotFoundError:
            return ClusterState(random_id(), {}, secure)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LocalBrokerError(
                f"{path} is damaged ({error}): choose another data directory, or delete this one"
            ) from error
        if sorted(state.ports) != sorted(broker_ids):
            raise LocalBrokerError(
                f"the data directory {self.path} belongs to a cluster of {len(state.ports)} broker(s), "
                f"not {len(broker_ids)}: start that many, or choose another directory"
            )
        if state.secure != secure:
            kind = "a secured cluster" if state.secure else "a cluster that is not secured"
            raise LocalBrokerError(
                f"the data directory {self.path} belongs to {kind}: start it with{'' if state.secure else 'out'} "
                "security, or choose another directory"
            )
        return state


def open_log(path: Path) -> int:
    """Open the log for appending: several brokers write to it. A large log is rotated first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _LOG_ROTATES_AT:
        path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def lines_since(path: Path, start: int) -> list[str]:
    """The lines that were written to the log after position `start`; at most the last MiB of them."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start if start <= end else 0, end - 2**20))
            return log.read().decode(errors="replace").splitlines()
    except OSError as error:
        return [f"(the log cannot be read: {error})"]


def error_excerpt(said: Sequence[str], most: int = 25) -> str:
    """The important lines of a log: errors and causes, each with the lines after it, or the last lines if there are no
    errors. A broker that cannot start logs the reason, and then many lines about its shutdown."""
    marks = (" ERROR ", " FATAL ", "Caused by: ")
    errors = [index for index, line in enumerate(said) if any(mark in line for mark in marks)]
    shown = sorted({near for index in errors for near in range(index, min(index + 4, len(said)))})
    return "\n".join([said[index] for index in shown][-most:] or said[-most:])
