"""What plans cost, before and after a change: `python loadtests/plan_times.py --help`.

It is described in server/docs/scheduling.md.
"""

import sys

from stoker_bench.laboratory.plan_times import main

if __name__ == "__main__":
    sys.exit(main())
