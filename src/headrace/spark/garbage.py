"""A worker's collection of garbage, without the modules that it has loaded.

Spark's Python workers collect all garbage after each task, before they take the next one. That looks at every object
of pyspark, pyarrow and this package, which are none: 20 to 60 ms, a third of the time of a small task.
"""

from __future__ import annotations

import gc
import os

_done_in = 0


def spare_the_modules() -> None:
    """Once in a process, what there is by now is taken out of all collections to come. To be called by a task when its
    modules are loaded: what the user's own code makes before and drops later in cycles stays, so not later than that.
    """
    global _done_in
    if _done_in != os.getpid():
        _done_in = os.getpid()
        gc.freeze()
