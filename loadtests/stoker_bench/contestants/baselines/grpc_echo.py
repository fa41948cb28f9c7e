"""A bare grpc.aio server that echoes an infer request, to measure the cost of gRPC itself.

`python -m stoker_bench.contestants.baselines.grpc_echo --address HOST:PORT`. It parses and writes the message, as
every service with grpc.aio does.
"""

from __future__ import annotations

import argparse
from typing import Any

import grpc
import uvloop

from stoker.gateway.grpc.messages import SERVICE, ModelInferRequest


async def _echo(request: Any, context: Any) -> Any:
    del context
    return request


def echo_server(address: str) -> tuple[Any, int]:
    """Make a server on the running event loop, for `ModelInfer`; return it and its port."""
    handler = grpc.unary_unary_rpc_method_handler(
        _echo, ModelInferRequest.FromString, ModelInferRequest.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": handler}),))
    return server, server.add_insecure_port(address)


async def _serve(address: str) -> None:
    server, _ = echo_server(address)
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    uvloop.run(_serve(parser.parse_args().address))


if __name__ == "__main__":
    main()
