"""KIP-333: a live lane and a backlog lane for each partition after a crash.

Decisions: `_machines/lanes/`.
"""
