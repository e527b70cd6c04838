"""Producing: partitioners, batches that are appended once and in order (idempotence), and transactions."""
