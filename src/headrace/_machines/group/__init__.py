"""Membership of a group on both protocols (KIP-62, KIP-848), deferred revocation (KIP-983), and assignors."""
