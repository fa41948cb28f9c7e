"""Scripts of PyTorch in several processes: they find each other by their variables, and end with equal weights."""

import sys
from pathlib import Path

from tests.torch.conftest import torch

from stoker.settings.workspace import Workspace
from stoker_runs.launch.following import wait
from stoker_runs.launch.submission import Request, submit
from stoker_runs.records.folder import log_file
from stoker_runs.records.record import Definition
from stoker_runs.records.states import Status

# As in scripts of users, no backend is named: PyTorch takes gloo for CPUs and NCCL for GPUs.
SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group()
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    rows = torch.randn(8, 4)
    loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = torch.cat([one.detach().flatten() for one in model.parameters()])
print("rank", dist.get_rank(), "of", dist.get_world_size(), weights.tolist())
torch.save(model.module.state_dict(), "outputs/model.pt")
dist.destroy_process_group()
"""


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    """Each has other rows, both the same weights; the model of the first one is the run's."""
    (tmp_path / "train.py").write_text(SCRIPT)
    workspace = Workspace(tmp_path / ".stoker")
    # GPUs of the machine that tests are not alone.
    definition = Definition("train.py", gpus=0, nodes=2, variables={"OMP_NUM_THREADS": "1"})
    folder, _ = submit(Request(definition, tmp_path, python=sys.executable), workspace)
    state = wait(folder, workspace)
    logs = [log_file(folder, 1, rank).read_text() for rank in range(2)]
    assert state.status is Status.COMPLETED, "\n".join(logs)
    parts = [log.rpartition("rank ")[2].partition(" [") for log in logs]
    assert [rank for rank, _, _ in parts] == ["0 of 2", "1 of 2"]
    assert parts[0][2] == parts[1][2] != ""
    models = [torch.load(folder.outputs / name) for name in ("model.pt", "rank_1/model.pt")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
