"""A SPARK_HOME whose Python processes start faster.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` in front of the path of its Python processes. The zip has no bytecode:
each process compiles PySpark, which takes 0.6 s of CPU time, and a small pipeline has eight of them. The installed
package has bytecode. `fast_home()` is a directory with links to what is in the package, but without `python`, so that
these processes import the package.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from pathlib import Path

from ..local.paths import cache_dir

_LINKED = ("bin", "conf", "jars", "sbin")


def fast_home() -> Path | None:
    """The directory, created if it does not exist. None if it cannot be created, or if SPARK_HOME is set.

    Only for workers that run in this Python: another one may have no PySpark but the one in the zip."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None or "SPARK_HOME" in os.environ:
        return None
    package = Path(found.origin).parent
    home = cache_dir() / f"spark-home-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:
            if (package / name).exists():
                with contextlib.suppress(FileExistsError):
                    (home / name).symlink_to(package / name)
    except OSError:
        return None
    return home
