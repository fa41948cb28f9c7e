"""What can be set: a server's and a model's settings, where they are read from, and what their values mean."""
