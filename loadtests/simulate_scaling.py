"""Rules that choose the number of pods, on bursty traces: `python loadtests/simulate_scaling.py --help`.

It is described in loadtests/README.md.
"""

import sys

from stoker_bench.scaling import main

if __name__ == "__main__":
    sys.exit(main())
