"""A worker whose modules are excluded from garbage collection still collects the garbage of its tasks."""

from __future__ import annotations

import subprocess
import sys

IN_A_WORKER = """
import gc, weakref
import pyspark, pyarrow
from headrace.spark.worker.tuning import exclude_modules_from_gc

class Loop:
    def __init__(self):
        self.itself = self

gc.collect()
before = len(gc.get_objects())
exclude_modules_from_gc()
assert len(gc.get_objects()) < before / 100, "modules are still tracked"
for task in range(3):
    left = weakref.ref(Loop())
    exclude_modules_from_gc()
    gc.collect()
    assert left() is None, "garbage of a task is not collected"
"""


def test_modules_are_not_looked_at_and_what_tasks_leave_is_collected() -> None:
    # A new process is in the state of a worker's first task.
    subprocess.run([sys.executable, "-c", IN_A_WORKER], check=True, timeout=120)
