"""The asynchronous consumer and the tasks that carry out the decisions of `_machines`.

Each room has the name of its counterpart there. All tasks run on the consumer's own thread (`portal.py`).
"""

from .. import _protocol as _protocol  # must run first: it decides how kio is imported
from .consumer import AsyncConsumer

__all__ = ["AsyncConsumer"]
