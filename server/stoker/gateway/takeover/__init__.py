"""Comparing versions of a model in a frontend, which samples requests and runs them again on other versions."""
