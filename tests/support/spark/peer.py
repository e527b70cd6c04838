"""Programs in the environment of `benchmarks.spark_peer`: one session with Spark's own connector and headrace."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import spark_peer


def run_beside_jvm(program: ModuleType, job: dict[str, Any], timeout: float = 900) -> Any:
    """What a program of `support.programs` prints as its last line: JSON. Its argument is the job, with the jars of the
    connector. Skips the test if the environment cannot be installed."""
    try:
        peer = spark_peer.prepare(print)
    except spark_peer.Unavailable as reason:
        pytest.skip(f"Spark's connector is not available: {reason}")
    done = subprocess.run(
        [peer.python, str(Path(str(program.__file__))), json.dumps({**job, "jars": peer.jars})],
        env=peer.environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
