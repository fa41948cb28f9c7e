"""Whether a model's rows affect each other: from its graph, by tests when it is loaded, and while it serves."""
