"""`run(handler)`: the processing loop of both kinds of consumers.

Decisions: `_machines/run/`.
"""
