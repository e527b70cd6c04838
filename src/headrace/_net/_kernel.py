"""The native part of receiving, and of fetches that are repeated without the GIL (`direct_fetch.rs`)."""

from __future__ import annotations

from .._native import DirectFetch, DirectResponse, FrameReceiver, PollWait

__all__ = ["DirectFetch", "DirectResponse", "FrameReceiver", "PollWait"]
