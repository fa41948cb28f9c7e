"""`ts.torch_handler.base_handler`: loads a model, and answers by preprocess, inference and postprocess."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any, Final

from stoker.deployment import kind_of_torch_file
from stoker.runtimes.torch.files import load_program, load_weights
from stoker_torchserve.ts.context import Context
from stoker_torchserve.ts.handler_utils.timer import timed
from stoker_torchserve.ts.utils.util import list_classes_from_module, load_label_mapping

logger = logging.getLogger(__name__)

_LABELS: Final = "index_to_name.json"
_NO_EXPLANATIONS: Final = (
    "explanations are not offered: they need the package captum; compute them in a handler of your own"
)


class BaseHandler:
    """A handler whose model takes and gives tensors; subclasses say what becomes of requests and outputs."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Context | None = None
        self.model_pt_path: str | None = None
        self.manifest: dict[str, Any] = {}
        self.map_location: str | None = None
        self.model_yaml_config: dict[str, Any] = {}
        self.explain = False
        self.target = 0
        self.profiler_args: dict[str, Any] = {}

    def initialize(self, context: Context) -> None:
        """Load the model that the manifest names, and the names of its classes.

        Raises:
            RuntimeError: The archive has no model that can be loaded; the message says why.
        """
        import torch

        self.context = context
        self.model_yaml_config = context.model_yaml_config or {}
        properties = context.system_properties
        on_gpu = torch.cuda.is_available() and properties.get("gpu_id") is not None
        self.map_location = "cuda" if on_gpu else "cpu"
        self.device = torch.device(f"cuda:{properties['gpu_id']}" if on_gpu else "cpu")
        self.manifest = context.manifest
        model_dir = Path(properties["model_dir"])
        described = self.manifest["model"]
        if described.get("serializedFile"):
            self.model_pt_path = str(model_dir / described["serializedFile"])
        if described.get("modelFile"):
            self.model = self._load_pickled_model(str(model_dir), described["modelFile"], self.model_pt_path)
            self.model.to(self.device).eval()
        elif self.model_pt_path:
            self.model = self._load_file(self.model_pt_path)
        else:
            raise RuntimeError(
                "the archive has neither a modelFile nor a serializedFile, so there is no model to load"
            )
        self._compile()
        self.mapping = load_label_mapping(model_dir / _LABELS)
        self.initialized = True

    def _load_file(self, path: str) -> Any:
        """Load a model that needs no class."""
        if path.endswith(".onnx"):
            return self._load_onnx_model(path)
        match kind_of_torch_file(Path(path)):
            case "torchscript":
                model = self._load_torchscript_model(path)
                model.eval()
                return model
            case "program":
                return load_program(Path(path)).module().to(self.device)
            case "aotinductor":
                raise RuntimeError(
                    f"{path} is an AOTInductor package, whose compiled code runs when it is loaded: archive the "
                    "program that it was compiled from, or load it in a handler of your own"
                )
            case _:
                raise RuntimeError(
                    f"{Path(path).name} of the archive is neither TorchScript nor a program of torch.export; weights "
                    "need a modelFile with the class of the model"
                )

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        """Load TorchScript onto the device."""
        import torch

        return torch.jit.load(model_pt_path, map_location=self.device)

    def _load_onnx_model(self, path: str) -> Any:
        """Load an ONNX model, which the handler's own `inference` runs."""
        import onnxruntime

        providers = ["CPUExecutionProvider"]
        if self.map_location == "cuda":
            providers.insert(0, "CUDAExecutionProvider")
        return onnxruntime.InferenceSession(path, providers=providers)

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        """Make the only class of a model file, and give it the weights of the serialized file."""
        if not (Path(model_dir) / model_file).is_file():
            raise RuntimeError(f"the modelFile {model_file} is not in the archive")
        module = importlib.import_module(Path(model_file).stem)
        classes = list_classes_from_module(module)
        if len(classes) != 1:
            names = ", ".join(kind.__name__ for kind in classes) or "none"
            raise ValueError(
                f"the modelFile {model_file} has to define one class, that of the model; it has {names}"
            )
        model = classes[0]()
        if model_pt_path:
            model.load_state_dict(load_weights(Path(model_pt_path), self.device))
        return model

    def _compile(self) -> None:
        """Compile the model if the configuration has `pt2: {compile: {enable: true}}`, or the older forms of that."""
        wanted = self.model_yaml_config.get("pt2")
        if not wanted:
            return
        options: dict[str, Any] = {"backend": wanted} if isinstance(wanted, str) else dict(wanted)
        if "export" in options:
            raise RuntimeError(
                "pt2.export is not offered: save the program as a .pt2 file, as the serializedFile"
            )
        if "compile" in options:
            options = dict(options["compile"])
            if not options.pop("enable", False):
                return
        import torch

        self.model = torch.compile(self.model, **options)

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return rows as a tensor."""
        import torch

        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what the model answers to a tensor."""
        import torch

        with torch.inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Return the answers as a list with an entry for each row."""
        answers: list[Any] = data.tolist()
        return answers

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Answer the rows of a call, one answer for each.

        Raises:
            NotImplementedError: A request asks for an explanation.
        """
        self.context = context
        prepared = self.preprocess(data)
        if self._is_explain():
            return self.explain_handle(prepared, data)
        return self.postprocess(self.inference(prepared))  # type: ignore[no-any-return]  # `timed` keeps no types

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> list[Any]:
        """Refuse: explanations are not offered.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(_NO_EXPLANATIONS)

    def get_insights(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: explanations are not offered.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(_NO_EXPLANATIONS)

    def describe_handle(self) -> Any:
        """Return what a handler says of itself: nothing, unless a subclass does."""
        return None

    def get_device(self) -> Any:
        """Return the device of the model."""
        return self.device

    def _is_explain(self) -> bool:
        context = self.context
        return bool(context and context.request_processor) and (
            context is not None and context.get_request_header(0, "explain") == "True"
        )
