"""Membership of a consumer group: its coordinator, heartbeats in the background, rebalances inside `poll()`.

Decisions: `_machines/group/`.
"""
