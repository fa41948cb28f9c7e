"""Versions that take over from others: comparison of their answers, traffic split, and rollback."""
