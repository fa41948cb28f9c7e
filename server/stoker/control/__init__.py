"""The control channel that joins the processes, and what they tell each other on it."""
