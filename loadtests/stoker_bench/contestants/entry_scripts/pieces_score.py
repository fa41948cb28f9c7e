"""Yields as a model of language does: as many pieces as the body says, each some time after the one before."""

import asyncio
import json
from collections.abc import AsyncIterator

PIECE_S = 0.01


def init() -> None:
    """Nothing is needed."""


async def run(raw_data: str) -> AsyncIterator[dict[str, int]]:
    """Answer {"piece": 0}, {"piece": 1}, … to {"pieces": N}."""
    for number in range(json.loads(raw_data)["pieces"]):
        await asyncio.sleep(PIECE_S)
        yield {"piece": number}
