"""Producing: which partition a record goes to."""
