"""A model of PyTorch compiled by torch.compile, at the load alone; the answers have to agree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.execution_choice import TOLERANCE
from stoker.runtimes.packed import Feeds
from stoker.runtimes.precision import float_difference
from stoker.runtimes.torch.model import RunOf, TorchModel


def keep_compiled_code(deployment: Deployment) -> None:
    """Set up PyTorch's compiler before its import: it keeps its code in the workspace and starts no processes."""
    if deployment.engine_cache is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(deployment.engine_cache / "compiled")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def compile_module(
    torch: Any, name: str, run_of: RunOf, requests: Sequence[Feeds], model: TorchModel
) -> TorchModel:
    """Compile a model by torch.compile for the sizes of `requests`. Other sizes run without compilation.

    Args:
        requests: Requests that the model answers, of all sizes that batches are likely to have.

    Raises:
        LoadFailed: The model cannot be compiled, or the compiled one answers differently.
    """
    if not isinstance(model.module, torch.nn.Module) or isinstance(model.module, torch.jit.ScriptModule):
        raise LoadFailed(
            f"{name}: compile is for programs of torch.export.save and weights with a model_class: leave it out"
        )
    expected = [run_of(model)(feeds) for feeds in requests]
    compiled = replace(model, module=torch.compile(model.module, dynamic=True))
    try:
        difference = max(
            float_difference(run_of(compiled)(feeds), outputs)
            for feeds, outputs in zip(requests, expected, strict=True)
        )
    except Exception as error:
        raise LoadFailed(f"{name} cannot be compiled: {in_one_line(error)}; leave compile out") from error
    if difference > TOLERANCE:
        raise LoadFailed(
            f"{name}: its compiled outputs differ by {difference:.2g} of the largest one; leave compile out"
        )
    # A request must not wait for the compiler.
    torch.compiler.set_stance("eager_on_recompile")
    return compiled
