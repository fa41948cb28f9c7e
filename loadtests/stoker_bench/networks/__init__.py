"""What is served: the models of the benches, and what they must answer."""
