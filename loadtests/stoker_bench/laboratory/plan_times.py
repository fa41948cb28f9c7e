"""Processor time of plans, of choices among models, and of simulated requests.

Each plan is of fresh rows, as a worker has read them from its doorbells, and is timed with others like it, so that
the clock is looked at seldom. Decision 31 has its figures.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

_MS: Final = 1_000_000
_NOW_NS: Final = 50 * _MS
_SHAPES: Final = ((64, 8), (256, 16), (16_384, 64), (16_384, 1024))
_BATCH_MS, _ROW_MS, _CAP = 1.7, 0.25, 64
_LANES: Final = 2


def _taught(cap: int) -> Any:
    from stoker.device.batch_sizes import ServiceTimes

    times = ServiceTimes()
    for _ in range(16):
        for rows in (1, 2, cap // 2, cap):
            times.learn(rows, round((_BATCH_MS + _ROW_MS * rows) * _MS))
    times.costs_ns(cap)
    return times


def _filled(rows: int, lots: int, first_ms: float, last_ms: float, *, targets: bool, named: bool) -> Any:
    """A queue of rows of one request each, whose targets lie between two times from now."""
    from stoker.device.row_queue import RowQueue

    queue = RowQueue()
    each = rows // lots
    due_ns = _NOW_NS + np.linspace(first_ms * _MS, last_ms * _MS, rows).astype(np.int64)
    for lot in range(lots):
        part = slice(lot * each, (lot + 1) * each)
        numbers = np.arange(part.start, part.stop, dtype=np.uint32)
        said: dict[str, Any] = {"target_ns": due_ns[part], "size": np.ones(each, np.int64)} if targets else {}
        if named:
            said |= {"tier": np.ones(each, np.int64), "caller": numbers.astype(np.int64) % 4}
        enqueued_ns = due_ns[part] - 60 * _MS
        queue.push(
            lot % _LANES, numbers, np.zeros(each, np.int64), enqueued_ns, enqueued_ns + 2000 * _MS, **said
        )
    return queue


def _plans() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], object], int]]:
    """Return what is timed: name, factory of a queue, the operation, and how many at once."""
    from stoker.device.batching import BatchPolicy

    for rows, lots in _SHAPES:
        count = 64 if rows <= 256 else 8
        kinds = {
            "target, overload": (_CAP, (3.0, 25.0), 25.0, False),
            "target, enough time": (_CAP, (30.0, 50.0), 25.0, False),
            "target, 4 callers": (_CAP, (3.0, 25.0), 25.0, True),
            "no target": (_CAP, (30.0, 50.0), None, False),
        }
        if rows <= 256:
            kinds["target, all fits"] = (256, (80.0, 100.0), 100.0, False)
            kinds["no target, all fits"] = (256, (80.0, 100.0), None, False)
        for kind, (cap, due_ms, target_ms, named) in kinds.items():
            said = {"targets": target_ms is not None, "named": named}
            yield (
                f"plan, {rows} rows in {lots} lots, {kind}",
                functools.partial(_filled, rows, lots, *due_ms, **said),
                functools.partial(_planned, policy=BatchPolicy(cap, target_ms=target_ms), times=_taught(cap)),
                count,
            )


def _planned(queue: Any, policy: Any, times: Any) -> object:
    from stoker.device.scheduler import schedule

    return schedule(queue, _NOW_NS, policy, times)


def _times_us(repeats: int) -> dict[str, float]:
    """Processor time of each, in microseconds: the least of repeats."""
    found = {}
    for name, make, act, count in (*_plans(), *_choices()):
        taken = []
        for _ in range(repeats + 1):
            made = [make() for _ in range(count)]
            gc.collect()
            begun_ns = time.thread_time_ns()
            # Kept, as a server frees the rows of a batch only when it has run.
            done = [act(one) for one in made]
            taken.append((time.thread_time_ns() - begun_ns) / count / 1e3)
            del made, done
        found[name] = min(taken[1:])
    return found


def _choices() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], object], int]]:
    from stoker.device.batching import Proposal
    from stoker.device.device_sharing import Arbiter

    kinds = {"at ease": (100, False), "in conflict": (2, False), "the first loses rows": (100, True)}
    for kind, (latest_ms, losing) in kinds.items():
        arbiter = Arbiter({str(model): 1.0 for model in range(8)})
        offers = {
            str(model): Proposal(
                20, 4 * _MS, _NOW_NS + (latest_ms + model % 5) * _MS, 1, losing and not model, None
            )
            for model in range(8)
        }
        act = functools.partial(_chosen, arbiter=arbiter)
        yield f"choose, 8 models, {kind}", functools.partial(dict, offers), act, 64


def _chosen(offers: Any, arbiter: Any) -> object:
    return arbiter.choose(_NOW_NS, offers)


def _simulated_s() -> dict[str, float]:
    """Processor seconds of 100,000 simulated requests, of those of O6 and of single rows."""
    from stoker_bench.laboratory.suite import SUITE, simulate

    found = {}
    for name in ("O1", "O4", "O6"):
        workload = SUITE[name]
        requests = len(workload.draw(101).at_ns)
        begun_s = time.thread_time()
        simulate(workload, "Stoker", [101])
        found[f"100,000 requests of {name}, s"] = (time.thread_time() - begun_s) / requests * 100_000
    return found


def _one(repeats: int) -> dict[str, float]:
    gc.disable()
    return _times_us(repeats) | _simulated_s()


def _other(server: Path, repeats: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--json", "--rounds", "1", "--repeats", str(repeats)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(server)}, capture_output=True, check=True, text=True
    )
    parsed: dict[str, float] = json.loads(done.stdout)
    return parsed


def main(arguments: list[str] | None = None) -> int:
    """Measure, in turns with another checkout if one is named, and print a table or JSON."""
    parser = argparse.ArgumentParser(description="Measure what plans cost, in processor time.")
    parser.add_argument(
        "--before", type=Path, help="the folder server/ of another checkout, measured in turns"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (3)")
    parser.add_argument("--repeats", type=int, default=15, help="how often in each round (15)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    if args.json:
        sys.stdout.write(json.dumps(_one(args.repeats)) + "\n")
        return 0
    now = Path(__file__).parents[3] / "server"
    before, after = [], []
    for _ in range(args.rounds):
        if args.before is not None:
            before.append(_other(args.before, args.repeats))
        after.append(_other(now, args.repeats))
    for name in after[0]:
        # The least: whatever else the machine does only adds to it.
        cells = [f"{min(found[name] for found in kept):10.2f}" for kept in (before, after) if kept]
        sys.stdout.write(f"{name:60}{''.join(cells)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
