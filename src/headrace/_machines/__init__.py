"""Decisions without I/O, clock or chance: a machine takes an event and `now`, and returns what to do.

No module in here imports asyncio, socket, threading, time or random; an import contract enforces it.
"""

from .. import _protocol as _protocol  # must run first: it decides how kio is imported
