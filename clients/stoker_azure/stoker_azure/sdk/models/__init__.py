"""Registered models, and how one is to be run."""
