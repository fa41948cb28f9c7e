"""The control channel between the supervisor and its processes, and the messages sent on it."""
