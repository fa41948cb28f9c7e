"""Compute targets: where runs can go, and one engine for each kind of machine. Engines decide nothing."""
