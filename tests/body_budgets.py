"""Budgets of large bodies that tests compute."""

from __future__ import annotations

from stoker.gateway.http.body_budget import LARGE_BODY_BYTES

__all__ = ["least_budget_bytes"]


def least_budget_bytes(body_bytes: int) -> int:
    """Return the smallest budget that has room for a body of this size, if no other body is held."""
    return -(-body_bytes // LARGE_BODY_BYTES) * LARGE_BODY_BYTES * 3 // 2
