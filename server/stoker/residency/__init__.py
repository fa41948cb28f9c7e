"""Which models stay in memory where there is no room for all."""
