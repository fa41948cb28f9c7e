"""The baselines of every bench, one uvicorn worker each: two constants and a hand-written service."""

from __future__ import annotations

from pathlib import Path

from stoker_bench.contestants.servers import Launch, uvicorn_launch

__all__ = ["BARE", "HANDWRITTEN", "STARLETTE", "bare_launch", "handwritten_launch", "starlette_launch"]

BARE = "bare ASGI constant"
STARLETTE = "Starlette constant"
HANDWRITTEN = "hand-written service"


def bare_launch() -> Launch:
    """Start the bare ASGI app that reads the body and answers a constant."""
    return uvicorn_launch(BARE, "stoker_bench.contestants.baselines.constants:bare_app")


def starlette_launch() -> Launch:
    """Start the constant behind a Starlette route."""
    return uvicorn_launch(STARLETTE, "stoker_bench.contestants.baselines.constants:starlette_app")


def handwritten_launch(model: Path) -> Launch:
    """Start the hand-written service, the yardstick of both the bench and the comparison."""
    environment = {"STOKER_BENCH_MODEL": str(model)}
    return uvicorn_launch(HANDWRITTEN, "stoker_bench.contestants.baselines.handwritten:app", environment)
