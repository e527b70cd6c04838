"""Producing: which partition a record goes to, and batches that are appended once and in order (idempotence)."""
