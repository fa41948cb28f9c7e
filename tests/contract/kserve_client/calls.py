"""Calls by KServe's own REST client; run by the Python of an environment that has it, for its pins contradict ours.

Arguments: the server's root, and the value of `Authorization`. Writes what came back as JSON.
"""

import asyncio
import json
import sys
from typing import Any

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

ROOT, AUTHORIZATION = sys.argv[1:]
ROWS = np.array([[1, 2, 3, 4], [0, 0, 0, 1.5]], np.float32)


def key() -> dict[str, str]:
    """Headers with the key."""
    return {"Authorization": AUTHORIZATION}


def request(
    model: str, arrays: dict[str, tuple[str, np.ndarray]], *, binary: bool, **more: Any
) -> InferRequest:
    """An infer request."""
    inputs = []
    for name, (datatype, array) in arrays.items():
        made = InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, binary_data=binary)
        inputs.append(made)
    return InferRequest(model_name=model, infer_inputs=inputs, **more)


async def v2() -> dict[str, Any]:
    """The Open Inference Protocol."""
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    answers: dict[str, Any] = {
        "live": await client.is_server_live(ROOT),
        "ready": await client.is_server_ready(ROOT),
        "model ready": await client.is_model_ready(ROOT, "scores"),
    }
    outputs = [RequestedOutput("y", parameters={"binary_data": True})]
    words = np.array([b"caf\xc3\xa9", b"", b"words"], object)
    half = np.array([[0.5, 2]], np.float16)
    for name, model, sent in (
        ("json", "scores", request("scores", {"x": ("FP32", ROWS)}, binary=False, request_id="id-1")),
        ("binary", "scores", request("scores", {"x": ("FP32", ROWS)}, binary=True, request_outputs=outputs)),
        ("strings", "texts", request("texts", {"words": ("BYTES", words)}, binary=True)),
        (
            "two inputs",
            "pair",
            request(
                "pair",
                {"a": ("FP32", np.array([[1, 2]], np.float32)), "b": ("INT64", np.array([[1, 2, 3]]))},
                binary=True,
            ),
        ),
    ):
        answer = await client.infer(ROOT, sent, model_name=model, headers=key())
        answers[name] = {
            "id": answer.id,
            "outputs": {
                output.name: [
                    item.decode() if isinstance(item, bytes) else item
                    for item in output.as_numpy().reshape(-1).tolist()
                ]
                for output in answer.outputs
            },
        }
    for name, model, sent in (
        ("refused", "scores", request("scores", {"x": ("FP16", half)}, binary=True)),
        ("unknown", "unknown", request("unknown", {"x": ("FP32", ROWS)}, binary=False)),
    ):
        try:
            await client.infer(ROOT, sent, model_name=model, headers=key())
        except httpx.HTTPStatusError as error:
            answers[name] = [error.response.status_code, str(error)]
    await client.close()
    return answers


async def v1() -> Any:
    """TensorFlow Serving's predict, which KServe calls v1."""
    client = InferenceRESTClient(RESTConfig(protocol="v1"))
    answer = await client.infer(ROOT, {"instances": ROWS.tolist()}, model_name="scores", headers=key())
    await client.close()
    return answer


async def main() -> None:
    """Make all calls."""
    print(json.dumps({"v2": await v2(), "v1": await v1()}))


asyncio.run(main())
