"""Entry scripts that take whole requests: the forms that `run` may have, and everything around a call of it."""
