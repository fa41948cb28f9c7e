"""Stoker on a GPU, beside what ONNX Runtime reaches alone: `python loadtests/gpu_bench.py --help`.

It is described in loadtests/README.md, "On a GPU".
"""

import sys

from stoker_bench.gpu.command import main

if __name__ == "__main__":
    sys.exit(main())
