"""Runtimes: a batch in, a batch out. Each module imports its framework; only device processes import them."""
