"""Load on Stoker and on what it is measured against, always in turns within one run.

The machine's clock drifts between runs, so every figure that this package stands for is a ratio between two
servers whose slices lay next to each other.
"""
