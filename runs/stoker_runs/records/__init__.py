"""Training runs on disk: definitions, states, files, and summaries of many runs."""
