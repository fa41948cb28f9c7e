"""The simulation as a laboratory: whole suites, fleets, baselines, bounds and pictures."""
