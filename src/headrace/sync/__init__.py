"""The consumer for programs without asyncio: a portal onto one background thread."""

from .consumer import Consumer

__all__ = ["Consumer"]
