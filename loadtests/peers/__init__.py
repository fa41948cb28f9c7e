"""The same model as served by others; stoker_bench.contestants.peers says how each file runs."""
