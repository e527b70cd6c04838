"""Positions of assigned partitions: committed offsets, resets, truncation checks; ListOffsets requests.

Decisions: `_machines/positions/`.
"""
