"""Offset commits: by the user, by auto-commit, and by completion (KIP-983).

Decisions: `_machines/commit/`.
"""
