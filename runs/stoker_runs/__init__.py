"""Training runs of Stoker: experiments, runs, sweeps and compute targets."""
