"""Models in memory where there is no room for all."""
