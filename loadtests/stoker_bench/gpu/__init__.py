"""The bench on a GPU: `loadtests/gpu_bench.py`.

What a model reaches without a server is measured in the same run, and is what all other figures are compared with.
"""
