"""Versions that take over from others: what differs between their answers, and who decides what on it."""
