"""Deployed services: what Azure's classes tell of them, and the processes that serve them."""
