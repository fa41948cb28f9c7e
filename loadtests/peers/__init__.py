"""The same model as served by others; stoker_bench.peers says how each file runs."""
