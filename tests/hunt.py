"""Run the property tests with examples that nobody has tried: `python -m tests.hunt --seconds 600`, or `make hunt`.

Each round runs all property tests, and its examples follow from its seed; the next round has the next seed. A failure
prints the commands that run the failed tests again, with the same examples.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from random import SystemRandom
from typing import Final

_PROFILE: Final = "--hypothesis-profile=hunt"
_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")
_PYTEST_ALL_PASSED: Final = 0
_PYTEST_SOME_FAILED: Final = 1


def main() -> int:
    """Run rounds until the time is up or a test fails; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.hunt", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600, help="how long; a round is always run to its end"
    )
    parser.add_argument("--seed", type=int, help="of the first round; one that nobody knows by default")
    parser.add_argument("--workers", default="3", help="test processes at once")
    parser.add_argument("tests", nargs="*", help="files and folders; all by default")
    options = parser.parse_args()
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    began_s = time.monotonic()
    while True:
        print(f"{time.strftime('%H:%M:%S')} SEED={seed}", flush=True)
        code = run_round(seed, options.workers, options.tests)
        if code != _PYTEST_ALL_PASSED:
            print("\nFAILED", *(repeat_commands(seed) if code == _PYTEST_SOME_FAILED else []), sep="\n")
            return code
        seed += 1
        if time.monotonic() >= began_s + options.seconds:
            return 0


def run_round(seed: int, workers: str, tests: list[str]) -> int:
    """Run all property tests once with the examples of a seed; returns pytest's exit code."""
    _FAILED.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-n", workers, "-m", "hypothesis", _PROFILE]
    return subprocess.run([*command, f"--hypothesis-seed={seed}", *tests], check=False).returncode


def repeat_commands(seed: int) -> list[str]:
    """The command for each test that failed in the newest round."""
    names: list[str] = sorted(json.loads(_FAILED.read_text()))
    return [
        f"to run it again: {sys.executable} -m pytest {_PROFILE} --hypothesis-seed={seed} '{name}'"
        for name in names
    ]


if __name__ == "__main__":
    sys.exit(main())
