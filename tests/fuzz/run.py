"""Fuzz the decoders and a running server for some minutes: `python -m tests.fuzz.run --minutes 10`.

What must hold for every body: a decoder gives what it promises or refuses it as the caller's fault, within two
seconds and without large allocations; the server answers below 500 (or with a status of gRPC that blames the caller)
within ten, and its processes do not grow beyond three times the body limit. It ends with the first body for which
that does not hold, as small as it could be made: that belongs into `test_corpus.py`, with what mends it.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.contract.protocol_models import DEPLOYMENT, write_models
from tests.fuzz.decoders import BODY_LIMIT_MB, DECODERS
from tests.fuzz.server import Server, posts
from tests.live_server import LiveServer, free_port
from tests.tiny_models import BODY_SCRIPT, write_script

DECODER_LIMIT_BYTES: Final = 64 << 20
SERVER_SHARES: Final = 5


def fuzz(
    name: str, strategy: st.SearchStrategy[Any], check: Callable[[Any], None], duration_s: float, start: int
) -> int:
    """Check examples for some time; returns how many."""
    until_s, count = time.monotonic() + duration_s, 0

    def one(example: Any) -> None:
        nonlocal count
        count += 1
        check(example)

    number = start
    while time.monotonic() < until_s:
        run = settings(
            max_examples=300,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )(seed(number)(given(strategy)(one)))
        run()
        number += 1
    print(f"{name:10} {count:8} bodies in {duration_s:.0f} s", flush=True)
    return count


def main() -> None:
    """Fuzz each decoder by itself, then a server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    share_s = options.minutes * 60 / (len(DECODERS) + SERVER_SHARES)
    before = _max_rss_bytes()
    for name, (bodies, check) in DECODERS.items():
        fuzz(name, bodies, check, share_s, options.seed)
        grown = _max_rss_bytes() - before
        assert grown <= DECODER_LIMIT_BYTES, f"{name} took {grown >> 20} MiB"
    with tempfile.TemporaryDirectory() as scratch:
        fuzz_server(Path(scratch), share_s, options.seed)


def fuzz_server(scratch: Path, share_s: float, start: int) -> None:
    """Fuzz a server with models of all kinds."""
    deployment, grpc_port = scratch / "deployment", free_port()
    write_models(deployment / "models")
    write_script(deployment / "models" / "body", BODY_SCRIPT)
    file = deployment / "deployment.yaml"
    file.write_text(DEPLOYMENT.replace("max_body_mb: 1", f"max_body_mb: {BODY_LIMIT_MB}"))
    with LiveServer(scratch, "--config", file, "--grpc-port", str(grpc_port)) as live:
        server = Server(live, grpc_port)
        # The first requests load and keep memory that is not theirs.
        fuzz("warm-up", posts(), server.check, min(10, share_s), start)
        server.begin()
        for part in range(SERVER_SHARES):
            fuzz("server", posts(), server.check, share_s, start + 1000 * part)
            server.check_memory()
        print(f"the server's processes grew by at most {server.worst_bytes >> 20} MiB; {server.statuses}")


def _max_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    sys.exit(main())
