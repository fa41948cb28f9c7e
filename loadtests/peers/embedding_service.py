"""FastAPI around a library of embeddings: the texts that wait are embedded together, on a thread.

MODEL_PATH names the folder of the model, LIBRARY is sentence_transformers or fastembed, MAX_BATCH limits the texts.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import ORJSONResponse

MODEL_PATH, MAX_BATCH = os.environ["MODEL_PATH"], int(os.environ["MAX_BATCH"])
THREADS = len(os.sched_getaffinity(0))


def load() -> Callable[[list[str]], Sequence[Any]]:
    """Load the model of the library; returns what embeds a list of texts."""
    if os.environ["LIBRARY"] == "fastembed":
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        TextEmbedding.add_custom_model(
            model="bench/bench", pooling=PoolingType.MEAN, normalization=True,
            sources=ModelSource(hf="bench/bench"), dim=256, model_file="onnx/model.onnx",
        )  # fmt: skip
        onnx = TextEmbedding("bench/bench", specific_model_path=MODEL_PATH, threads=THREADS)
        return lambda texts: list(onnx.embed(texts, batch_size=MAX_BATCH))
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    model = SentenceTransformer(MODEL_PATH, device="cpu")
    # It sorts the texts by their length, so that short parts have little padding.
    return lambda texts: model.encode(texts, batch_size=8, show_progress_bar=False)


waiting: asyncio.Queue[tuple[str, asyncio.Future[Any]]] = asyncio.Queue()


async def work() -> None:
    """Embed what waits, batch by batch."""
    embed = await asyncio.to_thread(load)
    while True:
        batch = [await waiting.get()]
        while len(batch) < MAX_BATCH and not waiting.empty():
            batch.append(waiting.get_nowait())
        vectors = await asyncio.to_thread(embed, [text for text, _ in batch])
        for (_, answered), vector in zip(batch, vectors, strict=True):
            answered.set_result(vector)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Work while the server runs."""
    working = asyncio.create_task(work())
    yield
    working.cancel()


app = FastAPI(lifespan=lifespan, default_response_class=ORJSONResponse)


@app.post("/v1/embeddings")
async def embeddings(request: Request) -> ORJSONResponse:
    """Answer OpenAI's request with one text."""
    text = orjson.loads(await request.body())["input"]
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    await waiting.put((text, answered))
    return ORJSONResponse({"data": [{"embedding": (await answered).tolist()}]})
