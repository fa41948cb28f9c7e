"""The devices of the replicas of a model."""

import pytest

from stoker.models.placement import Placement, place


@pytest.mark.parametrize(
    ("devices", "replicas", "expected"),
    [
        (["auto"], 0, ["auto"]),
        (["cpu"], 3, ["cpu", "cpu", "cpu"]),
        (["cuda:0", "cuda:1"], 0, ["cuda:0", "cuda:1"]),
        (["cuda:0", "cuda:1"], 1, ["cuda:0"]),
        (["cuda:0", "cuda:1"], 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (["cuda:0", "cpu"], 4, ["cuda:0", "cpu", "cuda:0", "cpu"]),
    ],
)
def test_replicas_are_spread_round_robin(devices: list[str], replicas: int, expected: list[str]) -> None:
    """There is one for each device by default; with a number, the devices take turns."""
    assert place(devices, replicas, cores=8) == Placement(tuple(expected))


def test_a_gpu_may_have_any_number() -> None:
    """The cores of the machine do not limit the replicas of its GPUs."""
    placement = place(["cuda:0", "cuda:1"], 9, cores=2)
    assert (len(placement.devices), placement.shortfall, placement.cpu_replicas) == (9, "", 0)


@pytest.mark.parametrize(
    ("devices", "cores", "kept", "shortfall"),
    [
        (["cpu"], 3, ["cpu"] * 3, ""),
        (
            ["cpu"],
            2,
            ["cpu"] * 2,
            "3 replicas were asked for, 2 run: on the CPU there is at most one for each core, and this server may "
            "use 2",
        ),
        (
            ["auto"],
            1,
            ["auto"],
            "3 replicas were asked for, 1 runs: with device auto there is at most one for each core, and this server "
            "may use 1; name a GPU, such as cuda:0, to have more on it",
        ),
        (
            ["cpu", "cuda:0"],
            1,
            ["cpu", "cuda:0"],
            "3 replicas were asked for, 2 run: on the CPU there is at most one for each core, and this server may "
            "use 1",
        ),
    ],
)
def test_on_the_cpu_there_is_at_most_one_for_each_core(
    devices: list[str], cores: int, kept: list[str], shortfall: str
) -> None:
    """With too few cores fewer replicas run, and the shortfall has their number and the reason."""
    assert place(devices, 3, cores) == Placement(tuple(kept), shortfall)
