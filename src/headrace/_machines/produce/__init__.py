"""Producing: which partition a record goes to, batches that are appended once and in order (idempotence), and
transactions."""
