"""Producing: which partition a record goes to, and batches that are appended once and in order (idempotence).

Not used yet: dead letters and the command line write with confluent-kafka.
"""
