"""Kill a server that answers later: `python -m tests.chaos.later --requests 10000 --kills 20`, or `make chaos-later`.

Callers send requests to be answered later, each with a key that makes sending it again harmless. Meanwhile, and while
the answers are computed, all processes of the server are killed at random moments, and a new server takes over the
workspace. In the end each request has its right answer, and each that the model has run more than once says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom
from typing import Final, NamedTuple

from tests.http.raw_http import Connection, bearer, request, rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, free_port, wait_until
from tests.patience import PROGRAM_S
from tests.tiny_models import write_script

_SCRIPT: Final = """
import os
import time

import stoker

def init():
    global log
    log = os.open(os.environ["RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@stoker.batched(shape=(4,))
def run(data):
    os.write(log, "".join(f"{row[0]:.0f}\\n" for row in data if row[1] == 17 and row[2] == 29).encode())
    time.sleep(0.02)
    return data * 2
"""
"""Notes which rows of callers it runs; a load tries it with others."""
_CALLERS: Final = 4


class Tally(NamedTuple):
    """How the requests ended.

    Attributes:
        answered: How many have their right answer.
        run_again: How many the model has run more than once.
        unmarked: Numbers of those whose answers do not say so.
        wrong: Numbers of those with another answer, or none.
    """

    answered: int
    run_again: int
    unmarked: list[int]
    wrong: list[int]


def kill_and_fetch(scratch: Path, requests: int, kills: int, seed: int, most_s: float = 3.0) -> Tally:
    """Send requests, kill the server at random moments, at most `most_s` after its start, and fetch all answers."""
    dice, port, runs = Random(seed), free_port(), scratch / "runs"
    script = write_script(scratch / "model", _SCRIPT)
    locations: dict[int, str] = {}
    senders = [
        threading.Thread(target=_send, args=(port, range(first, requests + 1, _CALLERS), locations))
        for first in range(1, _CALLERS + 1)
    ]
    for life in range(kills + 1):
        folder = scratch / f"life{life}"
        folder.mkdir()
        with LiveServer(
            folder,
            script,
            *("--frontends", "2", "--later-mb", "256"),
            workspace=scratch / "workspace",
            port=port,
            env={"RUNS": str(runs)},
        ) as server:
            if not life:
                for sender in senders:
                    sender.start()
            if life < kills:
                # A moment is what it is about: nothing is waited for.
                time.sleep(dice.uniform(0, most_s))
                continue
            for sender in senders:
                sender.join()
            return _fetch(server, locations, requests, runs)
    raise AssertionError


def _send(port: int, numbers: range, locations: dict[int, str]) -> None:
    for number in numbers:
        headers = [("Prefer", "respond-async"), ("Idempotency-Key", f"request {number}")]
        message = scoring("/score", PRIMARY, rows_body([number, 17, 29, 1]), headers)

        def ask(message: bytes = message) -> str | None:
            try:
                with Connection(port) as connection:
                    answer = connection.ask(message)
            except (OSError, AssertionError):
                return None
            return answer.header("location") if answer.status == 202 else None

        locations[number] = wait_until(
            # It may have to outlive several starts.
            ask,
            f"request {number} is taken",
            timeout_s=PROGRAM_S,
            every_s=0.1,
        )


def _fetch(server: LiveServer, locations: dict[int, str], requests: int, runs: Path) -> Tally:
    wrong, attempts = [], {}
    with server.connect() as connection:
        for number in range(1, requests + 1):
            message = request("GET", locations[number], [bearer(PRIMARY)])
            answer = wait_until(
                lambda message=message: (  # type: ignore[misc]
                    None if (got := connection.ask(message)).status == 202 else got
                ),
                f"request {number} is answered",
                timeout_s=PROGRAM_S,
            )
            if answer.status != 200 or answer.json() != [[2 * number, 34, 58, 2]]:
                wrong.append(number)
            attempts[number] = int(answer.header("stoker-attempt") or 0)
    counted = Counter(map(int, runs.read_text().split()))
    again = [number for number in range(1, requests + 1) if counted[number] > 1]
    unmarked = [number for number in again if attempts[number] < counted[number]]
    return Tally(requests - len(wrong), len(again), unmarked, wrong)


def main() -> int:
    """Run once; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.later", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1_000_000))
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="stoker-later-"))
    began_s = time.monotonic()
    print(f"SEED={options.seed}, {scratch}", flush=True)
    tally = kill_and_fetch(scratch, options.requests, options.kills, options.seed)
    print(
        f"{tally.answered} of {options.requests} answered right over {options.kills} kills in "
        f"{time.monotonic() - began_s:.0f} s; {tally.run_again} run more than once, {len(tally.unmarked)} of them "
        f"unmarked; wrong: {tally.wrong}"
    )
    return 1 if tally.wrong or tally.unmarked else 0


if __name__ == "__main__":
    sys.exit(main())
