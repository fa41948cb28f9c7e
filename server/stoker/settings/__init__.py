"""Settings of servers and models: their declarations, sources and values.

A setting that is unknown, malformed, or contradicts another raises `InvalidSettings`; its message names the source.
"""
