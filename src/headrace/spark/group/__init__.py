"""A streaming query in a group: commits, membership (KIP-983), share groups (KIP-1206).

`integration.py` is what the stream reader uses; `share_reader.py` is a reader of its own. Each says which thread owns
its consumer.
"""
