"""Tuning: sweeps, whose children are runs of one script with other parameters each."""
