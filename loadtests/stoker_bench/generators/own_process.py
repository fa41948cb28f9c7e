"""A process of the bench's own load generator; figures go to stdout as JSON."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np
import orjson
import uvloop

from stoker_bench.generators.closed_loop import allow_many_connections, closed_loop, http_caller
from stoker_bench.generators.grpc_loop import grpc_caller
from stoker_bench.generators.scoring_request import ScoringRequest


def main() -> None:
    """Run the generator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True, help="path of the service, with gRPC /SERVICE/METHOD")
    parser.add_argument("--body", type=Path, required=True, help="file with the body or message")
    parser.add_argument("--headers", type=Path, required=True, help="file with headers as a JSON object")
    parser.add_argument("--grpc", action="store_true", help="call by gRPC, not HTTP/1.1")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--begin", type=float, help="monotonic time from which answers are counted")
    parser.add_argument(
        "--latencies", type=Path, required=True, help="file (.npy) for each latency in seconds"
    )
    args = parser.parse_args()
    allow_many_connections()
    headers = orjson.loads(args.headers.read_bytes())
    request = ScoringRequest(args.host, args.port, args.path, args.body.read_bytes(), headers)
    caller = grpc_caller(request) if args.grpc else http_caller(request.http_bytes)
    figures, latencies_s = uvloop.run(
        closed_loop(args.host, args.port, caller, args.connections, args.seconds, args.begin)
    )
    np.save(args.latencies, np.array(latencies_s))
    print(orjson.dumps(asdict(figures)).decode())


if __name__ == "__main__":
    main()
