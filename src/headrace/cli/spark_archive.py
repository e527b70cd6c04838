"""A class archive for the JVM of `headrace run`. With one, a run takes 5 to 8 seconds less.

Spark loads and verifies about 20,000 classes in each run. The JVM of the first run writes them to an archive (about 200
MB, in the cache directory) when it ends, after the results are shown; later runs map it. An archive fits one build of
Java and one installation of PySpark. Java ignores one that does not fit, and a run without one only takes longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

from ..local.java import find_java
from ..local.paths import cache_dir

_WRITES_WITHIN = 60.0


class SparkArchive:
    """The archive for this Java and this PySpark. Raises LocalBrokerError without Java."""

    def __init__(self) -> None:
        java, found = find_java(), importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        jars = Path(found.origin).with_name("jars")
        version = importlib.metadata.version("pyspark")
        build = (java.build, os.path.realpath(java.executable), version, jars.stat().st_mtime_ns)
        self._family = f"spark-{_short_hash(jars)}"
        self.path = cache_dir() / f"{self._family}-{_short_hash(build)}.jsa"
        self._draft = self.path.with_suffix(f".{os.getpid()}")
        self.is_missing = not self.path.exists()

    @property
    def java_option(self) -> str:
        """For a JVM that uses the archive, or writes it when it ends."""
        if self.is_missing:
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            return f'"-XX:ArchiveClassesAtExit={self._draft}"'
        return f'"-XX:SharedArchiveFile={self.path}"'

    def write(self, jvm: subprocess.Popen[Any]) -> None:
        """End the JVM, which was started with the option above, by closing its input. Takes seconds."""
        assert jvm.stdin is not None
        try:
            jvm.stdin.close()
            jvm.wait(_WRITES_WITHIN)
            self._draft.replace(self.path)
            for other in self.path.parent.glob(f"{self._family}-*"):  # of another Java, of other jars, or not complete
                if other != self.path:
                    other.unlink()
        except (OSError, subprocess.TimeoutExpired) as error:  # the next run tries again
            print(f"no class archive: {error}", flush=True)
        finally:
            self._draft.unlink(missing_ok=True)


def _short_hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
