"""The asynchronous consumer, and the tasks that carry out what the machines decide."""

from .. import protocol as protocol  # decides how kio is loaded, before any module in here does
from .consumer import AsyncConsumer

__all__ = ["AsyncConsumer"]
