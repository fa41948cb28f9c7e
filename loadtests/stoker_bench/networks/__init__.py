"""The models of the benches, and their expected outputs."""
