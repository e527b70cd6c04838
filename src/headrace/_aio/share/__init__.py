"""Share groups (KIP-932, KIP-1206): the share consumer and its tasks.

Decisions: `_machines/share/`.
"""
