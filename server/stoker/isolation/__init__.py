"""Whether the rows of a model see each other: read in its graph, tested with companions, watched while it serves."""
