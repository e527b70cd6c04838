"""Producing: records are collected into batches (`accumulator`), and batches are sent to the leaders of their
partitions (`sender`). Decisions about partitions, sequence numbers and transactions are in `_machines/produce/`.
"""
