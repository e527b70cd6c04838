"""The consumers for programs without asyncio: calls that need I/O run on the consumer's own thread."""

from .consumer import Consumer

__all__ = ["Consumer"]
