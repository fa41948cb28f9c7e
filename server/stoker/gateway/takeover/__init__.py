"""Comparing versions: a frontend keeps samples of requests, and runs them again on other versions."""
