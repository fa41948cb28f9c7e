"""What plans cost, before and after a change: `python loadtests/plan_times.py --help`.

Decision 31 has its figures.
"""

import sys

from stoker_bench.laboratory.plan_times import main

if __name__ == "__main__":
    sys.exit(main())
