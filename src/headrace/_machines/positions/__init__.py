"""Where partitions are read: committed offsets, auto.offset.reset, truncated logs (KIP-320)."""
