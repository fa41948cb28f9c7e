"""Settings of a model for a latency target: its batches are timed, their worth under load is simulated."""
