"""A device plugin whose GPUs are names: the kubelet counts them and gives each to one pod at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

__all__ = ["gpus"]

_FILE: Final = Path(__file__).with_name("device_plugin.proto")
_KUBELET: Final = "kubelet.sock"


@contextlib.contextmanager
def gpus(folder: Path, resource: str, count: int, scratch: Path) -> Iterator[None]:
    """Register so many GPUs with the kubelet, and give them to containers while the body runs.

    Args:
        folder: Where the kubelet has its socket for plugins.
        resource: What they are called: `nvidia.com/gpu`.
        count: How many there are.
        scratch: A folder of the test.
    """
    messages = _messages(scratch)
    ended = threading.Event()
    endpoint = f"{resource.replace('/', '-')}.sock"

    def watch(request: Any, context: Any) -> Iterator[Any]:
        devices = [{"ID": f"gpu-{number}", "health": "Healthy"} for number in range(count)]
        yield messages["ListAndWatchResponse"](devices=devices)
        # They stay as they are; the stream is the sign that the plugin lives.
        ended.wait()

    def allocate(request: Any, context: Any) -> Any:
        given = [{"envs": {"TEST_GPUS": ",".join(one.devices_ids)}} for one in request.container_requests]
        return messages["AllocateResponse"](container_responses=given)

    def options(request: Any, context: Any) -> Any:
        return messages["DevicePluginOptions"]()

    def handler(kind: Any, function: Any, takes: str) -> Any:
        return kind(function, messages[takes].FromString, lambda answer: answer.SerializeToString())

    plain, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods = {
        "GetDevicePluginOptions": handler(plain, options, "Empty"),
        "ListAndWatch": handler(stream, watch, "Empty"),
        "Allocate": handler(plain, allocate, "AllocateRequest"),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix://{folder / endpoint}")
    server.start()
    try:
        registration = {"version": "v1beta1", "endpoint": endpoint, "resource_name": resource}
        _register(folder, messages["RegisterRequest"](**registration))
        yield
    finally:
        ended.set()
        server.stop(None).wait()


def _register(folder: Path, request: Any) -> None:
    with grpc.insecure_channel(f"unix://{folder / _KUBELET}") as channel:
        call = channel.unary_unary("/v1beta1.Registration/Register", lambda one: one.SerializeToString())
        call(request, wait_for_ready=True, timeout=60)


def _messages(scratch: Path) -> dict[str, Any]:
    compiled = scratch / "device_plugin.binpb"
    include = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [f"-I{_FILE.parent}", f"-I{include}", f"--descriptor_set_out={compiled}", _FILE.name]
    assert protoc.main(["protoc", *arguments]) == 0
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"v1beta1.{name}")) for name in names}
