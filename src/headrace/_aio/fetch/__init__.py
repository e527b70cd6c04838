"""Fetch requests, decoding, and the buffer that `poll()` takes records from.

Decisions: `_machines/fetch/`.
"""
