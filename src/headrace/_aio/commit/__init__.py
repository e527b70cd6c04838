"""Offset commits: by the user, by auto-commit, and by completion (KIP-983); the errors of OffsetCommit and OffsetFetch.

Decisions about completion: `_machines/commit/`. Retries: `_aio/network/retries.py`.
"""
