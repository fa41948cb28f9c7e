"""The configuration of TensorFlow's GPUs; TensorFlow itself is not imported."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.deployment import Device
from stoker.errors import LoadFailed
from stoker.runtimes.tensorflow_setup import _KerasRefusal, import_tensorflow
from stoker.settings.choices import Acceleration


class _Config:
    """A stand-in for `tensorflow.config`. `calls` records the settings of GPUs."""

    def __init__(self, gpus: list[str]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.LogicalDeviceConfiguration = SimpleNamespace
        self.list_physical_devices = lambda kind: gpus
        self.set_visible_devices = self._recorder("visible")
        self.set_logical_device_configuration = self._recorder("logical")
        self.experimental = SimpleNamespace(
            set_memory_growth=self._recorder("growth"),
            enable_tensor_float_32_execution=self._recorder("tf32"),
        )
        self.optimizer = SimpleNamespace(set_experimental_options=self._recorder("optimizer"))
        self.threading = SimpleNamespace(get_intra_op_parallelism_threads=lambda: 2)

    def _recorder(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.mark.parametrize(
    ("acceleration", "calls"),
    [
        (None, [("growth", "first", True)]),
        (Acceleration(), [("growth", "first", True), ("tf32", True)]),
        (
            Acceleration(memory_mb=100, precision="fp32"),
            [("logical", "first", [SimpleNamespace(memory_limit=100)]), ("tf32", False)],
        ),
        (
            Acceleration(precision="fp16"),
            [("growth", "first", True), ("tf32", True), ("optimizer", {"auto_mixed_precision": True})],
        ),
    ],
)
def test_gpu_gets_the_settings_of_the_model(
    acceleration: Acceleration | None, calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of memory excludes growth. For a script only growth is set."""
    config = _Config(["first"])
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    import_tensorflow(Device("cuda", 1, "a GPU"), 2, acceleration)
    assert config.calls == [("visible", ["first"], "GPU"), *calls]


def test_script_gets_all_gpus_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of each grows on demand; a missing GPU is an error."""
    device = Device("cuda", 0, "two GPUs", "GPU-a", (Device("cuda", 1, "a GPU", "GPU-b"),))
    config = _Config(["first", "second"])
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    import_tensorflow(device, 2)
    visible = ("visible", ["first", "second"], "GPU")
    assert config.calls == [visible, ("growth", "first", True), ("growth", "second", True)]
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=_Config(["first"])))
    with pytest.raises(LoadFailed, match=r"TensorFlow does not find cuda:0\+cuda:1"):
        import_tensorflow(device, 2)


def test_gpu_that_tensorflow_does_not_find_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow itself would compute on the CPU."""
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=_Config([])))
    with pytest.raises(LoadFailed, match="TensorFlow does not find cuda:1"):
        import_tensorflow(Device("cuda", 1, "a GPU"), 2)


def test_keras_is_refused_to_one_thread() -> None:
    """TensorFlow is imported without it, while other threads may import it."""
    refusal = _KerasRefusal()
    with pytest.raises(ModuleNotFoundError, match=r"keras\.src is not imported with TensorFlow"):
        refusal.find_spec("keras.src", None)
    refusal.find_spec("keras", None)
    refusal.find_spec("kerastuner.engine", None)
    with ThreadPoolExecutor(1) as other:
        other.submit(refusal.find_spec, "keras.src", None).result()
