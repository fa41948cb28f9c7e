"""A node of this machine: containerd, kubelet, kube-proxy and GPUs that are names, each as it is released."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from tests.cluster import tools
from tests.cluster.control_plane import ControlPlane
from tests.pods import names
from tests.pods.device_plugin import gpus

__all__ = ["ADDRESS", "CNI", "FOLDER", "NAME", "RESOURCES", "Node", "lacking", "network", "running"]

FOLDER: Final = "STOKER_TEST_NODE"
"""The variable that names the folder of the node; it is set in the namespaces that `python -m tests.pods` makes."""
ADDRESS: Final = "172.30.0.2"
NAME: Final = "node-0"
CNI: Final = "containernetworking-plugins"
RESOURCES: Final = {"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 4}

_PROGRAMS: Final = (
    "containerd",
    "containerd-shim-runc-v2",
    "runc",
    "ctr",
    "ip",
    "iptables",
    "openssl",
    "unshare",
)
_CNI_FOLDERS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_SYSTEM: Final = Path("/sys/devices/system")
_CORES: Final = 16
_PODS: Final = "10.244.0.0/24"
_SANDBOX: Final = "stoker.test/pause:1"
_READY_WITHIN_S: Final = 120.0

_Process = subprocess.Popen[bytes]


def lacking() -> list[str]:
    """The programs that are missing on the machine."""
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    return absent if _cni() is not None else [*absent, CNI]


def _cni() -> Path | None:
    return next((folder for folder in _CNI_FOLDERS if (folder / "bridge").exists()), None)


def network(folder: Path) -> None:
    """Give the namespaces an address that pods reach, a route, and folders in place of those of the machine.

    Mounts and addresses are those of the namespaces: the machine sees nothing of them.
    """
    for name in ("upper", "work"):
        (folder / "var" / name).mkdir(parents=True)
    layers = f"lowerdir=/var,upperdir={folder / 'var/upper'},workdir={folder / 'var/work'}"
    for command in (
        ["ip", "link", "set", "lo", "up"],
        # A pair whose other end is nobody: an address needs an interface that has a carrier.
        ["ip", "link", "add", "uplink", "type", "veth", "peer", "name", "outside"],
        ["ip", "address", "add", f"{ADDRESS}/24", "dev", "uplink"],
        ["ip", "link", "set", "outside", "up"],
        ["ip", "link", "set", "uplink", "up"],
        # Addresses of Services are nowhere, and need a route before they are turned into those of pods.
        ["ip", "route", "add", "default", "dev", "uplink"],
        ["mount", "-t", "overlay", "overlay", "-o", layers, "/var"],
        ["mount", "-t", "tmpfs", "tmpfs", "/run"],
    ):
        subprocess.run(command, check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
    _name_cores(folder / "cores")


def _name_cores(folder: Path) -> None:
    """Let the kubelet find more cores than there are: pods request those, and none of them is a limit.

    It counts the cores of all memory nodes, of which each has the same ones here: those that it may give to groups.
    """
    cpus = sorted(_SYSTEM.glob("cpu/cpu[0-9]*"))
    for number in range(math.ceil(_CORES / len(cpus))):
        node = folder / f"node{number}"
        for cpu in cpus:
            topology = node / cpu.name / "topology"
            topology.mkdir(parents=True)
            for name in ("core_id", "physical_package_id"):
                shutil.copy(cpu / "topology" / name, topology)
        shutil.copy(_SYSTEM / "node/node0/meminfo", node)
        (node / "hugepages").mkdir()
        (node / "distance").write_text("10\n", encoding="ascii")
    subprocess.run(["mount", "--bind", folder, _SYSTEM / "node"], check=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A node that runs.

    Attributes:
        folder: Where its files and logs are.
        socket: Where containerd listens.
    """

    folder: Path
    socket: Path

    def ctr(self, *arguments: str | Path) -> str:
        """Run a command of containerd's client in the namespace of pods; returns its output."""
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def process_of(self, container: str) -> int:
        """The first process of a container that runs."""
        tasks = (line.split() for line in self.ctr("tasks", "list").splitlines()[1:])
        return next(int(process) for name, process, *_ in tasks if name == container)


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path, images: Sequence[Path]) -> Iterator[Node]:
    """Start a node of a control plane, with images of these archives; it ends with the body.

    Args:
        plane: Its control plane.
        folder: Where its files are kept.
        images: Archives of images, that of the sandbox among them, which is called `stoker.test/pause:1`.
    """
    with contextlib.ExitStack() as started:
        node = Node(folder, folder / "containerd.sock")
        containerd = _start(started, folder, "containerd", ["containerd", "--config", _containerd(folder)])
        _await(lambda: _answers(node), containerd, folder / "containerd.log")
        for archive in images:
            node.ctr("images", "import", archive)
        common = [f"--hostname-override={NAME}"]
        kubelet = [
            tools.folder() / "kubelet",
            f"--config={_kubelet(folder)}",
            f"--kubeconfig={plane.kubeconfig}",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'kubelet'}",
            f"--node-ip={ADDRESS}",
            "--node-labels=node.kubernetes.io/instance-type=Standard_NC6",
        ]
        proxy = [
            tools.folder() / "kube-proxy",
            f"--kubeconfig={plane.kubeconfig}",
            f"--cluster-cidr={_PODS}",
            "--proxy-mode=iptables",
            # Those are the machine's, and not to be written in a namespace.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ]
        started.enter_context(names.served(plane, ADDRESS))
        process = _start(started, folder, "kubelet", [*kubelet, *common])
        _start(started, folder, "kube-proxy", [*proxy, *common])
        plugins = Path("/var/lib/kubelet/device-plugins")
        _await((plugins / "kubelet.sock").exists, process, folder / "kubelet.log")
        for resource, count in RESOURCES.items():
            started.enter_context(gpus(plugins, resource, count, folder))
        _await(lambda: _is_ready(plane), process, folder / "kubelet.log")
        yield node


def _containerd(folder: Path) -> Path:
    cni = folder / "cni"
    cni.mkdir()
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": _PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    content = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
    (cni / "10-pods.conflist").write_text(json.dumps(content), encoding="utf-8")
    file = folder / "containerd.toml"
    file.write_text(
        f"""
version = 2
root = "{folder / "containerd"}"
state = "/run/containerd"
[grpc]
address = "{folder / "containerd.sock"}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{_SANDBOX}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{_cni()}"
conf_dir = "{cni}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
""",
        encoding="utf-8",
    )
    return file


def _kubelet(folder: Path) -> Path:
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n", encoding="ascii")
    content: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # Nobody but the tests is in its network.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{folder.name}",
        "containerRuntimeEndpoint": f"unix://{folder / 'containerd.sock'}",
        # Where a user may not raise limits, as in many containers.
        "featureGates": {"KubeletInUserNamespace": True},
        "failCgroupV1": False,
        "failSwapOn": False,
        "resolvConf": str(folder / "resolv.conf"),
        "clusterDNS": [ADDRESS],
        "clusterDomain": names.DOMAIN,
        "podLogsDir": str(folder / "logs"),
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    }
    file = folder / "kubelet.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


def _start(started: contextlib.ExitStack, folder: Path, name: str, command: Sequence[Any]) -> _Process:
    log = started.enter_context((folder / f"{name}.log").open("wb"))
    # Proxies of this machine are not those of the cluster.
    environ = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environ
    )
    started.callback(_end, process)
    return process


def _end(process: _Process) -> None:
    process.kill()
    process.wait()


def _answers(node: Node) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):
        node.ctr("version")
        return True
    return False


def _is_ready(plane: ControlPlane) -> bool:
    status = (plane.get(f"/api/v1/nodes/{NAME}") or {}).get("status", {})
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))
    allocatable = status.get("allocatable", {})
    return ready and all(allocatable.get(name) == str(count) for name, count in RESOURCES.items())


def _await(holds: Callable[[], bool], process: _Process, log: Path) -> None:
    deadline_s = time.monotonic() + _READY_WITHIN_S
    while not holds():
        assert process.poll() is None, log.read_text(encoding="utf-8")[-6000:]
        assert time.monotonic() < deadline_s, log.read_text(encoding="utf-8")[-6000:]
        time.sleep(0.1)
