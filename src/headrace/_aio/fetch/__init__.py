"""Fetch requests, decoding, and the buffer that `poll()` takes records from, and that drops revoked partitions.

Decisions: `_machines/fetch/`.
"""
