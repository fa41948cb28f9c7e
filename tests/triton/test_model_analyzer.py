"""Triton's Model Analyzer in its remote mode: it has a server load a model with the configurations that it tries."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from tests.patience import PROGRAM_S
from tests.triton.conftest import PERF_ANALYZER, printed_by

MODEL_ANALYZER = Path(sys.prefix) / "model-analyzer" / "bin" / "model-analyzer"
TRIED = {
    "max_batch_size": [8],
    "dynamic_batching": {"max_queue_delay_microseconds": [200]},
    "instance_group": [{"kind": "KIND_CPU", "count": [1, 2]}],
}


def profiled(folder: Path, address: dict[str, str], protocol: str) -> str:
    """Profile the model, and return the output of Model Analyzer."""
    file = folder / "profile.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "triton_launch_mode": "remote",
                "client_protocol": protocol,
                "triton_http_endpoint": address["http"],
                "triton_grpc_endpoint": address["grpc"],
                "triton_metrics_url": f"http://{address['http']}/metrics",
                "perf_analyzer_path": str(PERF_ANALYZER),
                "perf_analyzer_flags": {"measurement-interval": 500, "stability-percentage": 999},
                "profile_models": {
                    "mlp": {
                        "cpu_only": True,
                        "parameters": {"concurrency": [2]},
                        "model_config_parameters": TRIED,
                    }
                },
            }
        )
    )
    return printed_by(MODEL_ANALYZER, "profile", "-f", file, folder=folder, timeout_s=2 * PROGRAM_S)


@pytest.mark.skipif(
    not (MODEL_ANALYZER.exists() and PERF_ANALYZER.exists()),
    reason="Model Analyzer is not installed; `make test-triton` does it where it can be",
)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_model_analyzer_measures_each_configuration(
    address: dict[str, str], tmp_path: Path, protocol: str
) -> None:
    """The model as it is, with one instance and with two, each loaded by it; its table has the rates of all three."""
    printed = profiled(tmp_path, address, protocol)
    assert "load failed" not in printed, printed
    assert "Profiled 3 configurations for models: ['mlp']" in printed, printed
    with (tmp_path / "results" / "metrics-model-inference.csv").open() as table:
        rows = list(csv.DictReader(table))
    seen = {(row["Instance Group"], row["Max Batch Size"]) for row in rows}
    assert {("1:CPU", "8"), ("2:CPU", "8")} <= seen
    assert all(float(row["Throughput (infer/sec)"]) > 0 for row in rows)
    served = httpx.get(f"http://{address['http']}/v2/models/mlp/config").json()
    assert (served["max_batch_size"], served["dynamic_batching"]) == (
        8,
        {"preferred_batch_size": [], "max_queue_delay_microseconds": 200},
    ), json.dumps(served)
