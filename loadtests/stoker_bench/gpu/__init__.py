"""The bench on a GPU: `loadtests/gpu_bench.py`.

All figures are compared with the throughput of the runtime without a server, measured in the same run.
"""
