"""The asynchronous consumer, and the tasks that carry out what the machines decide."""

from .consumer import AsyncConsumer

__all__ = ["AsyncConsumer"]
