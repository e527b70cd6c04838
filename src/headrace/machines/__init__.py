"""Decisions, without I/O, clock or chance: a machine takes an event and `now`, and says what to do.

No module in here imports asyncio, socket, threading, time or random; an import contract keeps it so.
"""

from .. import protocol as protocol  # decides how kio is loaded, which some of these modules import first
