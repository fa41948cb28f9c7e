"""Hurt a server for as long as you like: `python -m tests.chaos --seconds 600`, or `make chaos SECONDS=600`.

Each episode follows from its seed, and the next one has the next seed. A failure prints the seed and what was done,
and leaves the folder with the server's log: `make chaos SEED=… SECONDS=0` runs that episode again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import SystemRandom
from typing import Final

from tests.chaos.report import grown, report
from tests.chaos.scheduler import Episode, plan

_ROUNDS: Final = 14


def main() -> int:
    """Run episodes until the time is up or a promise is broken; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600, help="how long; an episode is always run to its end"
    )
    parser.add_argument("--seed", type=int, help="of the first episode; one that nobody knows by default")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="rounds of faults in an episode")
    options = parser.parse_args()
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    began_s = time.monotonic()
    episodes: list[Episode] = []
    while not episodes or time.monotonic() < began_s + options.seconds:
        scratch = Path(tempfile.mkdtemp(prefix="stoker-chaos-"))
        episode = Episode(plan(seed + len(episodes), options.rounds), scratch, say=_say)
        episodes.append(episode)
        _say(f"episode {len(episodes)}, SEED={episode.plan.seed}: {episode.plan}")
        try:
            episode.run()
        except (AssertionError, OSError, RuntimeError):
            print(f"\n{traceback.format_exc()}\n{report(episodes, time.monotonic() - began_s)}\n")
            print(f"FAILED: {episode.plan}\nthe server's logs: {scratch}/start*/server.log")
            print(f"to run it again: make chaos SEED={episode.plan.seed} SECONDS=0", flush=True)
            return 1
        shutil.rmtree(scratch)
    print(f"\n{report(episodes, time.monotonic() - began_s)}")
    if kinds := grown(episodes):
        print(f"\nFAILED: these processes grew: {', '.join(kinds)}; SEED={seed}")
        return 1
    return 0


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
