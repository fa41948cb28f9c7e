"""Whether a model's rows affect each other: from its graph, by tests when it is loaded, and while it serves.

Samples that cannot be read or do not fit the model raise `LoadFailed`.
"""
