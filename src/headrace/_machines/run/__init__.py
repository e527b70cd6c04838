"""`run(handler)`: which record may be processed now, and which handler calls are overdue."""
