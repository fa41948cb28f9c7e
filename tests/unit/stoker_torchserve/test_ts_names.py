"""Names that TorchServe 0.12 offers to handlers: each is here, or a handler that imports it is refused by name."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tests.torchserve_archives import loaded_handler, manifest_of, write_folder

from stoker.errors import LoadFailed
from stoker_torchserve.ts.context import Context, RequestProcessor
from stoker_torchserve.ts.metrics.caching_metric import CachingMetric
from stoker_torchserve.ts.metrics.dimension import Dimension
from stoker_torchserve.ts.metrics.metric import Metric
from stoker_torchserve.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from stoker_torchserve.ts.torch_handler.image_classifier import ImageClassifier
from stoker_torchserve.ts.torch_handler.object_detector import ObjectDetector
from stoker_torchserve.ts.torch_handler.text_classifier import TextClassifier

PROVIDED_NAMES = """
ts.__version__
ts.context.Context ts.context.RequestProcessor
ts.handler_utils.timer.timed
ts.metrics.caching_metric.CachingMetric
ts.metrics.dimension.Dimension
ts.metrics.metric.Metric
ts.metrics.metric_cache_errors.MetricsCacheKeyError
ts.metrics.metric_cache_errors.MetricsCacheTypeError
ts.metrics.metric_cache_errors.MetricsCacheValueError
ts.metrics.metric_cache_yaml_impl.MetricsCacheYamlImpl
ts.metrics.metric_type_enum.MetricTypes
ts.metrics.unit.Units
ts.service.PredictionException ts.service.emit_metrics
ts.torch_handler.base_handler.BaseHandler
ts.torch_handler.image_classifier.ImageClassifier
ts.torch_handler.image_segmenter.ImageSegmenter
ts.torch_handler.object_detector.ObjectDetector
ts.torch_handler.text_classifier.TextClassifier
ts.torch_handler.text_handler.TextHandler
ts.torch_handler.vision_handler.VisionHandler
ts.utils.util.PredictionException ts.utils.util.get_yaml_config ts.utils.util.list_classes_from_module
ts.utils.util.load_label_mapping ts.utils.util.map_class_to_label
"""
REFUSED_NAMES = """
ts.arg_parser ts.async_service ts.launcher ts.llm_launcher ts.model_loader ts.model_server ts.model_service
ts.model_service_worker ts.version
ts.handler_utils.distributed.deepspeed.get_ds_engine
ts.handler_utils.distributed.pt_pippy.get_pipeline_driver
ts.handler_utils.hf_batch_streamer.TextIteratorStreamerBatch
ts.handler_utils.micro_batching.MicroBatching
ts.handler_utils.preprocess.dali
ts.handler_utils.text_utils
ts.handler_utils.utils.import_class
ts.handler_utils.utils.send_intermediate_predict_response
ts.metrics.metric_abstract.MetricAbstract
ts.metrics.metric_cache_abstract.MetricCacheAbstract
ts.metrics.metric_cache_errors.GeneralMetricsCacheError
ts.metrics.metric_cache_errors.MetricsCacheIOError
ts.metrics.metric_cache_errors.MetricsCachePyYamlError
ts.metrics.metric_collector ts.metrics.metric_encoder
ts.metrics.metrics_store.MetricsStore
ts.metrics.process_memory_metric.check_process_mem_usage
ts.metrics.system_metrics
ts.protocol.otf_message_handler.create_predict_response
ts.protocol.otf_message_handler.send_intermediate_predict_response
ts.service.Service ts.service.PREDICTION_METRIC
ts.torch_handler.base_handler.setup_ort_session
ts.torch_handler.contractions.CONTRACTION_MAP
ts.torch_handler.dali_handler.DALIHandler ts.torch_handler.dali_image_classifier.DALIImageClassifier
ts.torch_handler.densenet_handler.DenseNetHandler
ts.torch_handler.distributed.base_deepspeed_handler.BaseDeepSpeedHandler
ts.torch_handler.distributed.base_pippy_handler.BasePippyHandler
ts.torch_handler.request_envelope.base.BaseEnvelope
ts.torch_handler.text_handler.CONTRACTIONS_PATTERN
ts.torch_handler.trt_llm_handler ts.torch_handler.vllm_handler.VLLMHandler
ts.utils.hf_utils ts.utils.setup_model_venv ts.utils.timeit_decorator.timeit
ts.utils.util.CLEANUP_REGEX ts.utils.util.PT2Backend ts.utils.util.check_valid_pt2_backend ts.utils.util.deprecated
"""
METHODS: list[tuple[object, str]] = [
    (
        Context("m", "", {}, 1, None, "1"),
        "model_name manifest request_ids request_processor metrics model_yaml_config stopping_criteria "
        "header_key_sequence_id header_key_sequence_start header_key_sequence_end system_properties get_request_id "
        "get_request_header get_all_request_header set_response_content_type get_response_content_type "
        "get_response_status set_response_status set_all_response_status get_response_headers set_response_header "
        "get_sequence_id",
    ),
    (
        RequestProcessor({}),
        "get_request_property report_status get_response_status_code get_response_status_phrase "
        "add_response_property get_response_headers get_response_header get_request_properties",
    ),
    (
        MetricsCacheYamlImpl(None, "m"),
        "cache store request_ids model_name config_file_path set_request_ids add_metric add_counter add_time "
        "add_size add_percent add_error initialize_cache get_metric add_metric_to_cache cache_keys",
    ),
    (
        CachingMetric("n", "ms"),
        "metric_name unit dimension_names metric_type add_or_update update",
    ),
    (
        Metric("n", 1, "ms", []),
        "metric_type dimensions dimension_names dimension_values name unit metric_method value request_id update "
        "reset to_dict",
    ),
    (Dimension("n", "v"), "name value to_dict"),
    (
        ImageClassifier(),
        "model mapping device initialized context model_pt_path manifest map_location explain target profiler_args "
        "initialize preprocess inference postprocess handle explain_handle describe_handle get_device get_insights "
        "topk set_max_result_classes get_max_result_classes",
    ),
    (ObjectDetector(), "threshold initialize postprocess"),
    (
        TextClassifier(),
        "ngrams source_vocab get_source_vocab_path get_word_token summarize_attributions get_insights",
    ),
]


def write_handler(folder: Path, code: str, **files: str) -> Path:
    sources = {"own.py": f"{code}\n\ndef handle(data, context):\n    return data\n"}
    sources |= {f"{name}.py": content for name, content in files.items()}
    return write_folder(folder, manifest_of("m", "own.py"), dict(sources))


@pytest.mark.parametrize("name", PROVIDED_NAMES.split())
def test_name_that_is_provided_is_imported(name: str) -> None:
    """Under the module of the same name."""
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(f"stoker_torchserve.{module}"), attribute)


@pytest.mark.parametrize(("instance", "names"), METHODS, ids=[type(one).__name__ for one, _ in METHODS])
def test_methods_and_attributes_of_torchserve_are_there(instance: object, names: str) -> None:
    """No call of a public method ends in an AttributeError."""
    assert [name for name in names.split() if not hasattr(instance, name)] == []


@pytest.mark.parametrize("name", REFUSED_NAMES.split())
def test_name_that_is_not_provided_is_refused_at_the_load(name: str, tmp_path: Path) -> None:
    """Even where the handler imports it in a request alone, in a module beside it."""
    module, _, attribute = name.rpartition(".")
    lazy = f"def later():\n    from {module} import {attribute}\n"
    folder = write_handler(tmp_path / "m", "import beside", beside=lazy)
    refusal = f"beside.py imports {name}, a part of TorchServe that Stoker does not provide"
    with pytest.raises(LoadFailed, match=refusal), loaded_handler(folder):
        pass


def test_refusal_names_the_alternative(tmp_path: Path) -> None:
    """Each refused part with a counterpart in Stoker names it."""
    folder = write_handler(tmp_path / "m", "from ts.handler_utils.micro_batching import MicroBatching")
    with pytest.raises(LoadFailed, match="does not provide: set batchSize"), loaded_handler(folder):
        pass


def test_import_inside_a_try_is_no_fault(tmp_path: Path) -> None:
    """A `try` for an ImportError has an alternative, and modules that nothing imports are not checked."""
    code = "try:\n    import ts.launcher\nexcept ImportError:\n    pass\nfrom ts.context import *"
    folder = write_handler(tmp_path / "m", code, unused="import ts.launcher")
    with loaded_handler(folder):
        pass
