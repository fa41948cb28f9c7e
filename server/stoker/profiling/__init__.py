"""Finds settings of a model for a latency target: times its batches, and simulates load with these times."""
