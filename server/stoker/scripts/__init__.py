"""Entry scripts that take whole requests: the forms that `run` may have, and everything around a call of it.

A script that cannot be served raises `LoadFailed`. Proofs that its requests may be batched raise `Disproved` where
they fail; the script is then served without.
"""
