"""How long Stoker takes until it can score, beyond importing its runtime, and what its frontends weigh."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker_bench.contestants.servers import RunningServer, stoker_launch

if TYPE_CHECKING:
    from stoker_bench.contestants.process_tree import ProcessTree

__all__ = ["FRAMEWORKS", "FrontendWeight", "StartUp", "frontend_weight", "measure_start_up"]

FRONTEND_COMMAND = "stoker.gateway"
FRAMEWORKS = ("onnxruntime", "tensorflow")
REPEATS = 3


@dataclass(frozen=True)
class FrontendWeight:
    """The heaviest frontend process of a Stoker."""

    frontends: int
    rss_bytes: int
    pss_bytes: int
    frameworks: tuple[str, ...]
    """Frameworks of which some frontend has a library mapped; none should."""


@dataclass(frozen=True)
class StartUp:
    """Medians over several starts, taken in turn with the import."""

    ready_s: float
    import_s: float
    """Wall time of `python -c "import onnxruntime"`."""
    weight: FrontendWeight | None
    """Taken as soon as the server is ready, before any load."""

    @property
    def beyond_import_s(self) -> float:
        """Seconds until ready that importing onnxruntime does not explain."""
        return self.ready_s - self.import_s


def frontend_weight(tree: ProcessTree) -> FrontendWeight | None:
    """Weigh the frontends of a running Stoker; None where the tree has none."""
    frontends = tree.named(FRONTEND_COMMAND)
    if not frontends:
        return None
    memories = [tree.memory_of(pid) for pid in frontends]
    mapped = {name for name in FRAMEWORKS for pid in frontends if tree.maps(pid, name)}
    return FrontendWeight(
        frontends=len(frontends),
        rss_bytes=max(memory.rss_bytes for memory in memories),
        pss_bytes=max(memory.pss_bytes for memory in memories),
        frameworks=tuple(sorted(mapped)),
    )


def measure_start_up(model: Path, key: str, frontends: int | None) -> StartUp:
    """Start and end Stoker several times on a free machine."""
    ready_s, import_s, weight = [], [], None
    for _ in range(REPEATS):
        import_s.append(_import_seconds())
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            launch = stoker_launch(model, Path(folder, "workspace"), key, frontends)
            with RunningServer(launch, Path(folder, "log")) as server:
                ready_s.append(server.start_s)
                weight = frontend_weight(server.tree)
    return StartUp(statistics.median(ready_s), statistics.median(import_s), weight)


def _import_seconds() -> float:
    started_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import onnxruntime"], check=True, capture_output=True)
    return time.perf_counter() - started_s
