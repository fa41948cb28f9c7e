"""What can be set: a server's and a model's settings, where they are read from, and what their values mean.

A setting that is unknown, malformed, or contradicts another raises `InvalidSettings`; its message names the source.
"""
