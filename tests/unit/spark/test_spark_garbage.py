"""A worker that has been spared looking at its modules still collects what its tasks leave."""

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
assert len(gc.get_objects()) < before / 100, "they are looked at again"
for task in range(3):
    left = weakref.ref(Loop())
    exclude_modules_from_gc()
    gc.collect()
    assert left() is None, "what a task leaves stays"
"""


def test_modules_are_not_looked_at_and_what_tasks_leave_is_collected() -> None:
    # In a process of its own: there it is a worker's first task.
    subprocess.run([sys.executable, "-c", IN_A_WORKER], check=True, timeout=120)
