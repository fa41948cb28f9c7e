"""Rules that choose the number of pods, simulated on bursty traces: none of this needs a cluster."""
