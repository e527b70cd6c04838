"""A class archive for the JVM of `headrace run`. With one, Spark starts in a third of the time.

Spark loads and verifies about 20,000 classes in each run. The JVM of the first run lists them. After the results are
shown, another JVM writes them to an archive (about 200 MB, in the cache directory), and later runs map it. An archive
fits one build of Java, one installation of PySpark and one class path. Java ignores one that does not fit, and a run
without one only takes longer.

Java could write the archive when the first run ends (ArchiveClassesAtExit). But it would then run slower from its
start: see DESIGN.md.
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

_ENDS_WITHIN = 30.0
_WRITES_WITHIN = 120.0
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Verifying Spark's classes takes seconds, and the jars are those that pip has installed. A Java that does not know the
# option ignores it.
_UNVERIFIED = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


class SparkArchive:
    """The archive for this Java, this PySpark and this SPARK_HOME. Raises LocalBrokerError without Java."""

    def __init__(self, scratch: Path, spark_home: str | None = None) -> None:
        java, found = find_java(), importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        jars = Path(found.origin).with_name("jars")
        version = importlib.metadata.version("pyspark")
        build = (java.build, os.path.realpath(java.executable), version, jars.stat().st_mtime_ns, spark_home)
        self._java = java.executable
        self._family = f"spark-{_short_hash(jars)}"
        self.path = cache_dir() / f"{self._family}-{_short_hash(build)}.jsa"
        self._draft = self.path.with_suffix(f".{os.getpid()}")
        self._classes = scratch / "classes.txt"
        self.is_missing = not self.path.exists()

    @property
    def java_options(self) -> str:
        """For a JVM that uses the archive, or lists its classes for `write`."""
        if self.is_missing:
            return f'{_UNVERIFIED} "-XX:DumpLoadedClassList={self._classes}"'
        return f'"-XX:SharedArchiveFile={self.path}"'

    def write(self, jvm: subprocess.Popen[Any], class_path: str) -> None:
        """End the JVM, which was started with the options above, by closing its input, and write the archive. Takes
        up to a minute."""
        assert jvm.stdin is not None
        command = [self._java, "-Xshare:dump", *_SHORT_LIVED, f"-XX:SharedClassListFile={self._classes}"]
        # One line for each of the hundreds of classes that an archive cannot have is too much for the log.
        quiet = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
        try:
            jvm.stdin.close()
            jvm.wait(_ENDS_WITHIN)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            command += [f"-XX:SharedArchiveFile={self._draft}", *quiet, "-cp", class_path]
            subprocess.run(command, stdin=subprocess.DEVNULL, timeout=_WRITES_WITHIN, check=True)
            self._draft.replace(self.path)
            for other in self.path.parent.glob(f"{self._family}-*"):  # of another Java, of other jars, or not complete
                if other != self.path:
                    other.unlink()
        except (OSError, subprocess.SubprocessError) as error:  # the next run tries again
            print(f"no class archive: {type(error).__name__} in {command[0]}", flush=True)
        finally:
            with contextlib.suppress(OSError):
                self._draft.unlink(missing_ok=True)


def _short_hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
