"""Connections to the brokers of a cluster, metadata that is kept fresh, and retries (of commits, too).

Decisions: `_machines/backoff.py`, `cluster.py` and `outage_warnings.py`.
"""
