"""Decisions of the admin client: where a reset moves the offsets of a group."""
