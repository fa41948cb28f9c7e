"""A page on which people look up how the models are scored, and try it."""
