"""Questions about a whole cluster: all topics, all groups, all offsets, with a few large requests.

Every question has an answer or an error for each thing that it is about, and is asked once: the next survey retries.
"""

from __future__ import annotations

from .survey import Survey as Survey
