"""Simulated nodes: they report pods as running. Nothing runs, or the pod's command as a process of this machine.

One thread watches the pods of all nodes. Delayed actions report that a pod runs after the time that its image takes
to start, and that it is gone after the time that it takes to end. A test writes the log of a pod.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx
from tests.cluster import statuses
from tests.cluster.delayed_actions import DelayedActions
from tests.cluster.kubelet import make_kubelet

__all__ = ["Behaviour", "Nodes"]

_LOOK_AGAIN_S: Final = 0.2
_STATUS: Final = {"Content-Type": "application/strategic-merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The simulated life of a pod.

    Attributes:
        start_s: Seconds until it is ready.
        end_s: Seconds until it is gone, once it has been deleted.
        waits: The kubelet's reason why it never starts: `ImagePullBackOff`, `CrashLoopBackOff`.
        message: The kubelet's message beside that reason.
        log: The pod's log.
        address: A server of this machine that answers on each port of the pod; none by default.
        runs: Whether the command of the pod is run, as a process of this machine without the pod's volumes.
    """

    start_s: float = 0.05
    end_s: float = 0.05
    waits: str | None = None
    message: str = ""
    log: str = ""
    address: tuple[str, int] | None = None
    runs: bool = False


class Nodes:
    """All simulated nodes of a control plane.

    Args:
        api: The API, with the rights of an administrator.

    Attributes:
        behaviours: The behaviour of pods by the image of their first container.
        usual: The behaviour of all others.
    """

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self.behaviours: dict[str, Behaviour] = {}
        self._logs: dict[str, str] = {}
        self.usual = Behaviour()
        self._addresses = itertools.count(1)
        self._names: set[str] = set()
        self._known: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._actions = DelayedActions()
        self._ended = False
        self._kubelet = make_kubelet(self._find_pod)
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._watch, self._kubelet.serve_forever)
        ]

    def __enter__(self) -> Self:
        self._actions.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._kubelet.shutdown()
        self._kubelet.server_close()
        self._actions.stop()
        for process in self._processes.values():
            _kill(process)
        self._actions.writers.shutdown()

    def add(
        self,
        count: int,
        *,
        gpus: int = 1,
        prefix: str = "node",
        labels: Mapping[str, str] | None = None,
        resource: str = "nvidia.com/gpu",
    ) -> list[str]:
        """Add nodes, `PREFIX-0` and so on, each with GPUs; returns their names."""
        names = [f"{prefix}-{number}" for number in range(count)]
        self._names.update(names)
        contents = [
            statuses.node(name, {resource: str(gpus)} if gpus else {}, labels or {}) for name in names
        ]
        port = self._kubelet.server_address[1]
        list(self._actions.writers.map(lambda content: self._add(content, port), contents))
        return names

    def remove(self, names: list[str]) -> None:
        """Remove nodes and all pods that are bound to them."""
        for name in names:
            self._api.delete(f"/api/v1/nodes/{name}")
        for pod in self._pods("?fieldSelector=spec.nodeName!=").get("items", []):
            if pod["spec"]["nodeName"] in names:
                self._gone(pod)

    def _add(self, content: dict[str, Any], port: int) -> None:
        name = content["metadata"]["name"]
        answer = self._api.post("/api/v1/nodes", json=content)
        assert answer.is_success, answer.text
        # Taken off by the controllers only for nodes that have ever been heard of, which these do once.
        status = {**content["status"], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        self._patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def _find_pod(self, namespace: str, name: str) -> tuple[str, tuple[str, int] | None]:
        """The log and the address of a pod."""
        found = self._behaviour(self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}").json())
        return self._logs.get(name, found.log), found.address

    def _behaviour(self, pod: Mapping[str, Any]) -> Behaviour:
        return self.behaviours.get(pod["spec"]["containers"][0]["image"], self.usual)

    def _pods(self, query: str) -> Any:
        return self._api.get(f"/api/v1/pods{query}").json()

    def _watch(self) -> None:
        while not self._ended:
            try:
                self._follow()
            except (httpx.HTTPError, json.JSONDecodeError, RuntimeError, KeyError):
                time.sleep(_LOOK_AGAIN_S)

    def _follow(self) -> None:
        listed = self._pods("?fieldSelector=spec.nodeName!=")
        for pod in listed["items"]:
            self._see(pod)
        version = listed["metadata"]["resourceVersion"]
        url = f"/api/v1/pods?watch=1&fieldSelector=spec.nodeName!=&resourceVersion={version}"
        with self._api.stream("GET", url, timeout=httpx.Timeout(30.0, read=None)) as events:
            for line in events.iter_lines():
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._see(event["object"])
                elif event["type"] == "DELETED":
                    self._known.pop(event["object"]["metadata"]["uid"], None)
                if self._ended:
                    return

    def _see(self, pod: dict[str, Any]) -> None:
        """Schedule a pod's start once, and its end once. Other nodes may be real ones."""
        if pod["spec"]["nodeName"] not in self._names:
            return
        uid, behaviour = pod["metadata"]["uid"], self._behaviour(pod)
        if "deletionTimestamp" in pod["metadata"]:
            if self._known.get(uid) != "ends":
                self._known[uid] = "ends"
                if uid in self._processes:
                    self._processes[uid].terminate()
                self._actions.schedule(behaviour.end_s, lambda: self._gone(pod))
        elif uid not in self._known:
            self._known[uid] = "starts"
            self._actions.schedule(0 if behaviour.waits else behaviour.start_s, lambda: self._started(pod))

    def _started(self, pod: dict[str, Any]) -> None:
        if self._known.get(pod["metadata"]["uid"]) != "starts":
            return
        absent = self._absent_volume(pod)
        if absent is not None:
            self._say(pod, statuses.waiting(pod, "ContainerCreating", absent))
            self._actions.schedule(_LOOK_AGAIN_S, lambda: self._started(pod))
            return
        behaviour = self._behaviour(pod)
        if behaviour.waits:
            self._say(pod, statuses.waiting(pod, behaviour.waits, behaviour.message))
        else:
            number = next(self._addresses)
            address = f"10.{128 + number // 65536}.{number // 256 % 256}.{number % 256}"
            self._say(pod, statuses.running(pod, address))
            if behaviour.runs:
                threading.Thread(target=self._run, args=(pod, address), daemon=True).start()

    def _run(self, pod: dict[str, Any], address: str) -> None:
        """Run the command of a pod, and say how it has ended."""
        container = pod["spec"]["containers"][0]
        variables = {one["name"]: _variable(one, pod) for one in container.get("env", ())}
        command = [_filled(word, variables) for word in container["command"]]
        # Each has its own thread: Linux signals a child the end of the thread that started it, not of the process.
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes[pod["metadata"]["uid"]] = process
        _, written = process.communicate()
        _kill(process)
        self._logs[pod["metadata"]["name"]] = written.decode(errors="replace")
        with contextlib.suppress(httpx.HTTPError, RuntimeError):
            self._say(pod, statuses.exited(pod, address, process.returncode))

    def kill(self, namespace: str, name: str) -> None:
        """Kill a pod's process, as the kernel does for lack of memory."""
        pod = self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}").json()
        _kill(self._processes[pod["metadata"]["uid"]])

    def _absent_volume(self, pod: dict[str, Any]) -> str | None:
        """The kubelet's message about a missing Secret or ConfigMap; None if the pod can start."""
        namespace = pod["metadata"]["namespace"]
        for volume in pod["spec"].get("volumes", []):
            for kind, named, plural in (
                ("secret", "secretName", "secrets"),
                ("configMap", "name", "configmaps"),
            ):
                if kind not in volume or volume[kind].get("optional"):
                    continue
                name = volume[kind][named]
                if self._api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}").status_code == 404:
                    return (
                        f'MountVolume.SetUp failed for volume "{volume["name"]}" : {kind} "{name}" not found'
                    )
        return None

    def _gone(self, pod: dict[str, Any]) -> None:
        process = self._processes.pop(pod["metadata"]["uid"], None)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pod["spec"]["terminationGracePeriodSeconds"])
            _kill(process)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._api.request("DELETE", f"{_path(pod)}", json=body)

    def _say(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        self._patch(f"{_path(pod)}/status", {"status": status})

    def _patch(self, path: str, content: dict[str, Any]) -> None:
        self._api.patch(path, content=json.dumps(content), headers=_STATUS)


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _variable(one: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """The value of a variable of a pod, whose address is that of this machine."""
    if "value" in one:
        return str(one["value"])
    path = one["valueFrom"]["fieldRef"]["fieldPath"]
    if path == "status.podIP":
        return "127.0.0.1"
    kind, name = path.removeprefix("metadata.").removesuffix("']").split("['")
    return str(pod["metadata"][kind][name])


def _filled(word: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        word = word.replace(f"$({name})", value)
    return word


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the session of a process, whether it has ended or not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
