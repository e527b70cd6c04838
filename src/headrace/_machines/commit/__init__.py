"""Sets of completed offsets, and completion in any order with commits in order (KIP-983)."""
