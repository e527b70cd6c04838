"""Producing: records are collected into batches (`accumulator`), and batches are sent to the leaders of their
partitions (`sender`). What is decided about partitions, sequence numbers and transactions is in `_machines/produce/`.
"""
