"""Fields of Triton's config.pbtxt count, are ignored with a note, or are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.control.device_messages import DEVICE_END, SUPERVISOR_END, LoadModel
from stoker.deployment import DeclaredTensor, Deployment, WarmUpInput, WarmUpRequest
from stoker.errors import RepositoryError
from stoker.models.triton_config import TritonConfig, read_triton_config
from stoker.settings.model import ModelSettings
from stoker.settings.sequence import ControlInput, SequenceSettings, StateTensor

PARAMETER = 'parameters { key: "%s" value { string_value: "%s" } }'
TENSOR = '{ name: "x" data_type: TYPE_FP32 dims: 4'
STATE = 'sequence_batching { state { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: 2'
CONTROL = 'sequence_batching { control_input { name: "A" control {'


def read(tmp_path: Path, text: str) -> TritonConfig:
    base = tmp_path / "net"
    base.mkdir(exist_ok=True)
    (base / "config.pbtxt").write_text(text)
    config = read_triton_config(base)
    assert config is not None
    return config


def test_the_state_of_sequences_becomes_settings(tmp_path: Path) -> None:
    """The settings have the declared sizes and the limits of number and time; fields without effect are noted."""
    config = read(
        tmp_path,
        """
        max_batch_size: 8
        input [
          { name: "x" data_type: TYPE_FP32 dims: [ 576 ] }, { name: "free" data_type: TYPE_FP32 dims: [ -1 ] }
        ]
        sequence_batching {
          max_sequence_idle_microseconds: 5000000
          oldest { max_candidate_sequences: 20 max_queue_delay_microseconds: 2000 preferred_batch_size: [ 4 ] }
          state [
            { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: [ 2, 64 ]
              initial_state { name: "zeros" data_type: TYPE_FP32 dims: [ 2, 64 ] zero_data: true } },
            { input_name: "c" output_name: "cn" data_type: TYPE_FP32 dims: [ -1 ] use_growable_memory: true }
          ]
        }
        """,
    )
    assert config.settings == ModelSettings(
        max_batch_rows=8,
        max_delay_ms=2.0,
        sequence=SequenceSettings(
            (StateTensor("h", "hn", (2, 64), dtype="float32"), StateTensor("c", "cn", dtype="float32")),
            {"x": (576,)},
            {},
            5.0,
            20,
        ),
    )
    passed = [note.partition(": ")[2].partition(" is passed over")[0] for note in config.notes]
    assert passed == [
        "sequence_batching.state[1].use_growable_memory",
        "sequence_batching.oldest.preferred_batch_size",
    ]


def test_sequence_batching_becomes_sequence_settings(tmp_path: Path) -> None:
    """Triton's controls, types and states become settings, with paths of initial states."""
    config = read(
        tmp_path,
        """
        sequence_batching {
          control_input [
            { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
            { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0.5, 2 ] } ] },
            { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
            { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
          ]
          state { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: 2
                  initial_state { name: "h0" data_type: TYPE_FP32 dims: 2 data_file: "h0.bin" } }
        }
        """,
    )
    assert config.notes == ()
    assert config.settings.sequence == SequenceSettings(
        (
            StateTensor(
                "h", "hn", (2,), initial=tmp_path / "net" / "initial_state" / "h0.bin", dtype="float32"
            ),
        ),
        controls=(
            ControlInput("START", "start", 0, 1, "int32"),
            ControlInput("END", "end", 0.5, 2, "float32"),
            ControlInput("READY", "ready", 0, 1, "bool"),
            ControlInput("CORRID", "id", dtype="uint64"),
        ),
    )


def test_a_folder_without_one_has_none(tmp_path: Path) -> None:
    """Then all facts come from the model itself."""
    assert read_triton_config(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("max_batch_size: 8", {"max_batch_rows": 8}),
        ("max_batch_size: 0", {}),
        ("version_policy: { latest { num_versions: 2 } }", {"versions": "latest:2"}),
        ("version_policy: { latest { } }", {"versions": "latest:1"}),
        ("version_policy { all { } }", {"versions": "all"}),
        ("version_policy: { specific: { versions: [3, 1] } }", {"versions": (1, 3)}),
        ("dynamic_batching { max_queue_delay_microseconds: 1500 }", {"max_delay_ms": 1.5}),
        ("dynamic_batching { preserve_ordering: false }", {}),
        ("instance_group [ { count: 2 kind: KIND_CPU } ]", {"instances": 2, "device": ("cpu",)}),
        (
            "instance_group [ { kind: KIND_GPU gpus: [0, 1] }, { kind: KIND_GPU gpus: [1] } ]",
            {"instances": 1, "device": ("cuda:0", "cuda:1")},
        ),
        ("instance_group { count: 3 }", {"instances": 3}),
        ('parameters { key: "intra_op_thread_count" value { string_value: "2" } }', {"threads": 2}),
        ('parameters { key: "intra_op_thread_count" value { string_value: "0" } }', {}),
        (PARAMETER % ("TF_SIGNATURE_DEF", "predict"), {"signature": ("predict",)}),
        ('backend: "tensorflow" ' + PARAMETER % ("TF_GRAPH_TAG", "serve"), {}),
        ("response_cache { enable: false } model_transaction_policy { decoupled: false }", {}),
        ("batch_input [ ]", {}),
    ],
)
def test_fields_become_settings(tmp_path: Path, text: str, settings: dict[str, Any]) -> None:
    """These fields are settings of the model, without a note."""
    config = read(tmp_path, text)
    assert config.settings == ModelSettings(**settings)
    assert config.notes == ()


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("response_cache { enable: true }", ["response_cache"]),
        ("optimization { cuda { graphs: true } }", ["optimization"]),
        ("model_transaction_policy { decoupled: true }", ["model_transaction_policy"]),
        (
            "dynamic_batching { preferred_batch_size: [4, 8] priority_levels: 2 preserve_ordering: true "
            "default_queue_policy { default_timeout_microseconds: 9 } }",
            [
                "dynamic_batching.preferred_batch_size",
                "dynamic_batching.preserve_ordering",
                "dynamic_batching.priority_levels",
                "dynamic_batching.default_queue_policy",
            ],
        ),
        (
            'instance_group [ { count: 1 }, { count: 2 host_policy: "near" } ]',
            ["instance_group[1].host_policy", "instance_group.count where it differs"],
        ),
        (
            'parameters { key: "enable_mem_arena" value { string_value: "0" } }',
            ["the parameter enable_mem_arena"],
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: 4 format: FORMAT_NCHW optional: false }',
            ["format of x"],
        ),
        (
            'backend: "onnxruntime" ' + PARAMETER % ("TF_SIGNATURE_DEF", "predict"),
            ["the parameter TF_SIGNATURE_DEF"],
        ),
    ],
)
def test_ineffective_fields_are_noted(tmp_path: Path, text: str, fields: list[str]) -> None:
    """Each field without effect is noted in a line for the start."""
    notes = read(tmp_path, text).notes
    assert [note.partition(" is passed over")[0] for note in notes] == [
        f"config.pbtxt of net: {field}" for field in fields
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_batch_size 8", "config.pbtxt of net, line 1, column 16: expected ':'"),
        ('name: "other"', "its name is 'other', and its folder is net"),
        ('platform: "tensorrt_plan"', "the platform 'tensorrt_plan' is not offered, .* provider: tensorrt"),
        ('backend: "fil"', "the backend 'fil' is not offered, .* load the model in a score.py"),
        ('platform: "onnxruntime_onnx" backend: "tensorflow"', "contradict each other"),
        (
            'platform: "ensemble" ensemble_scheduling { }',
            "ensemble_scheduling is not offered: write its steps under pipelines",
        ),
        ("sequence_batching { }", "sequence_batching.state is missing"),
        ('sequence_batching { control_input [{ name: "START" }] }', "name and one control are both needed"),
        (f"{CONTROL} kind: CONTROL_SEQUENCE_MIDDLE }} }} }}", "kind must be one of CONTROL_SEQUENCE_START"),
        (f"{CONTROL} kind: CONTROL_SEQUENCE_CORRID }} }} }}", "data_type must be one of TYPE_UINT64"),
        (f"{CONTROL} int32_false_true: [0] }} }} }}", "needs the two values of one of int32_false_true"),
        (f"{CONTROL} bool_false_true: [no, yes] }} }} }}", "must be numbers or true and false, not no"),
        (f"{CONTROL} int64_false_true: [0, 1] }} }} }}", "there is no field .*int64_false_true"),
        (
            "sequence_batching { "
            + 'control_input { name: "A" control { int32_false_true: [0, 1] } } ' * 2
            + "}",
            "control_input has two of one name",
        ),
        ("sequence_batching { iterative_sequence: true }", "iterative_sequence is not offered"),
        (
            'sequence_batching { state [{ input_name: "h" output_name: "hn" '
            'initial_state { name: "h0" data_file: "../h0" } }] }',
            "data_file is '../h0'; it must be a name without a folder",
        ),
        (
            'sequence_batching { state [{ input_name: "h" output_name: "hn" '
            "initial_state { zero_data: true } initial_state { zero_data: true } }] }",
            "initial_state stands more than once",
        ),
        (
            STATE + " initial_state { data_type: TYPE_INT32 dims: 2 zero_data: true } } }",
            "data_type must be that of the state",
        ),
        (STATE + " initial_state { dims: 3 zero_data: true } } }", "dims must be that of the state"),
        (PARAMETER % ("TF_GRAPH_TAG", "train"), "TF_GRAPH_TAG is 'train': only 'serve' is loaded"),
        (PARAMETER % ("TF_INIT_OPS_FILE", "init.json"), "TF_INIT_OPS_FILE is not offered: export"),
        ("batch_input { kind: BATCH_ELEMENT_COUNT }", "batch_input is not offered: export"),
        ("batch_output { }", "batch_output is not offered: export"),
        ('cc_model_filenames { key: "7.5" value: "a" }', "cc_model_filenames is not offered: name the file"),
        ('model_operations { op_library_filename: "a.so" }', "model_operations is not offered: load"),
        ('model_repository_agents { agents { name: "a" } }', "model_repository_agents is not offered: "),
        ("instance_group { passive: true }", r"instance_group\[0\].passive is not offered"),
        (f"input {TENSOR} optional: true }}", r"input\[0\].optional of x is not offered: export"),
        (f"input {TENSOR} allow_ragged_batch: true }}", "allow_ragged_batch of x is not offered: pad"),
        (f"input {TENSOR} is_shape_tensor: true }}", "is_shape_tensor of x is not offered"),
        (f"output {TENSOR} is_non_linear_format_io: true }}", "is_non_linear_format_io of x is not"),
        (f'output {TENSOR} label_filename: "l.txt" }}', r"output\[0\].label_filename: l.txt cannot be read"),
        (f'output {TENSOR} label_filename: "../l.txt" }}', "must be a name without a folder"),
        ('sequence_batching { state [{ input_name: "h" }] }', "output_name that must be a text"),
        ("max_batchsize: 8", "there is no field max_batchsize; did you mean max_batch_size?"),
        ("instance_group { cuont: 2 }", r"there is no field instance_group\[0\].cuont; did you mean count?"),
        ("max_batch_size: 8 max_batch_size: 9", "max_batch_size stands more than once"),
        ('max_batch_size: "8"', "max_batch_size must be a whole number, not 8"),
        ("max_batch_size: -1", "max_batch_size must be a whole number from 0 up, not -1"),
        ("name: net", "name must be a text in quotes, not net"),
        ("input: 3", "input must be messages in braces"),
        ("input { data_type: TYPE_FP32 dims: 1 }", r"input\[0\].name is missing"),
        (
            'input { name: "x" data_type: TYPE_BF17 dims: 1 }',
            "data_type of x must be one of .*, not TYPE_BF17",
        ),
        ('input { name: "x" data_type: TYPE_FP32 }', "dims of x are missing"),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ 65536, -1, 65536 ] }',
            "dims of x hold more than 2147483647 elements",
        ),
        ('input { name: "x" data_type: TYPE_FP32 dims: -2 }', r"input\[0\].dims must be whole numbers"),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [2, 3] reshape { shape: [5] } }',
            r"reshape of x: \[2, 3\] cannot become \[5\]",
        ),
        ("instance_group { kind: KIND_TPU }", "kind must be KIND_AUTO"),
        ("instance_group { count: 17 }", "instances must be"),
        ("version_policy { specific { versions: [] } }", "versions must be latest"),
        ('default_model_filename: "../net.onnx"', "must be a name without a folder"),
        (
            'model_warmup { name: "w" inputs { key: "x" value { dims: 4 } } }',
            "the model_warmup 'w' has no data for x",
        ),
        ("response_cache { enable: maybe }", "enable must be true or false, not maybe"),
    ],
)
def test_invalid_configuration_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    """The message names the file's model, and the field or the line and column."""
    with pytest.raises(RepositoryError, match=problem) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith("config.pbtxt of net")


def test_tensors_have_the_batch_axis_that_max_batch_size_says(tmp_path: Path) -> None:
    """It comes before the dims if it is above 0; the model gets the reshaped tensor."""
    text = """
        max_batch_size: %d
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] },
                { name: "n" data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] } } ]
        output { name: "y" data_type: TYPE_STRING dims: 2 reshape { shape: [ 2 ] } }
    """
    batched = read(tmp_path, text % 8).declaration
    assert batched.batched is True
    assert batched.inputs == (
        DeclaredTensor("x", "float32", (-1, 4, -1)),
        DeclaredTensor("n", "int64", (-1, 1), (-1,)),
    )
    assert batched.outputs == (DeclaredTensor("y", "string", (-1, 2)),)
    whole = read(tmp_path, text % 0).declaration
    assert whole.batched is False
    assert whole.inputs == (
        DeclaredTensor("x", "float32", (4, -1)),
        DeclaredTensor("n", "int64", (1,), ()),
    )
    assert read(tmp_path, "").declaration.batched is None


def test_the_values_of_an_output_have_the_names_of_its_file(tmp_path: Path) -> None:
    """The file has a line for each, in the folder of the model; a file that is too long is refused."""
    (tmp_path / "net").mkdir()
    labels = tmp_path / "net" / "labels.txt"
    labels.write_text("cat\n\nold dog\n")
    text = f'output {TENSOR} label_filename: "labels.txt" }}'
    assert read(tmp_path, text).declaration.outputs[0].labels == ("cat", "", "old dog")
    labels.write_text("cat\n" + "a" * 257)
    with pytest.raises(RepositoryError, match=r"a line of labels\.txt has more than 256 characters"):
        read(tmp_path, text)
    labels.write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(RepositoryError, match=r"labels\.txt cannot be read: .*more than 1048576 bytes"):
        read(tmp_path, text)


def test_a_state_without_batches_names_the_axis_of_its_row(tmp_path: Path) -> None:
    """With `max_batch_size: 0` dims are whole: the axis of size 1 of a state is that of the row."""
    text = STATE.replace("dims: 2", "dims: [ 2, 1, 64 ]") + " } }"
    config = read(tmp_path, f"max_batch_size: 0 input {TENSOR.replace('4', '[ 1, 4 ]')} }} {text}")
    assert config.settings.sequence == SequenceSettings(
        (StateTensor("h", "hn", (2, 64), 1, dtype="float32"),), {"x": (4,)}
    )


def test_warm_ups_are_requests(tmp_path: Path) -> None:
    """Zeros, numbers chosen at random, and files of the folder `warmup`."""
    config = read(
        tmp_path,
        """
        model_warmup [ {
            name: "first" batch_size: 4 count: 2
            inputs { key: "a" value: { data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true } }
            inputs: { key: "b", value: { data_type: TYPE_INT64 dims: 1 random_data: true } }
            inputs: { key: "c", value: { data_type: TYPE_STRING dims: 1 input_data_file: "texts" } }
        } ]
        """,
    )
    assert config.warm_up == (
        WarmUpRequest(
            "first",
            4,
            (
                WarmUpInput("a", "TYPE_FP32", (2, 3), "zero"),
                WarmUpInput("b", "TYPE_INT64", (1,), "random"),
                WarmUpInput("c", "TYPE_STRING", (1,), "file", tmp_path / "net" / "warmup" / "texts"),
            ),
        ),
    )


PYTHON = 'backend: "python" max_batch_size: 4 input [ { name: "x" data_type: TYPE_STRING dims: 1 %s } ] %s'


def test_the_configuration_of_a_python_model(tmp_path: Path) -> None:
    """It gets its parameters and tensors as JSON, and its instances are processes."""
    config = read(
        tmp_path,
        PYTHON
        % (
            "optional: true",
            'instance_group [ { count: 2 kind: KIND_CPU } ] parameters { key: "k" value { string_value: "v" } } '
            "model_transaction_policy { decoupled: false } dynamic_batching { max_queue_delay_microseconds: 5000 }",
        ),
    )
    assert config.framework == "script"
    assert config.settings == ModelSettings(max_batch_rows=4, max_delay_ms=5.0, replicas=2, device=("cpu",))
    assert json.loads(config.model_config) == {
        "name": "net",
        "platform": "",
        "backend": "python",
        "max_batch_size": 4,
        "input": [{"name": "x", "data_type": "TYPE_STRING", "dims": [1], "optional": True}],
        "output": [],
        "instance_group": [{"kind": "KIND_CPU", "count": 2, "gpus": []}],
        "parameters": {"k": {"string_value": "v"}},
        "model_transaction_policy": {"decoupled": False},
        "dynamic_batching": {"max_queue_delay_microseconds": 5000},
    }
    assert config.notes == ()


@pytest.mark.parametrize(
    ("tensor", "more", "problem"),
    [
        (
            "",
            "model_transaction_policy { decoupled: true }",
            "model_transaction_policy is not offered: a score.py",
        ),
        ("", CONTROL + "} } }", "sequence_batching is not offered: a score.py is given the state"),
        ("reshape { shape: [ 1 ] }", "", "reshape of x is not offered: reshape it in execute"),
        (
            "",
            PARAMETER % ("EXECUTION_ENV_PATH", "env.tar.gz"),
            "EXECUTION_ENV_PATH is not offered: list the packages",
        ),
    ],
)
def test_unsupported_python_model_is_refused(tmp_path: Path, tensor: str, more: str, problem: str) -> None:
    """A Python model with unsupported settings is refused with what to do instead."""
    with pytest.raises(RepositoryError, match=problem):
        read(tmp_path, PYTHON % (tensor, more))


def test_label_file_that_is_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    """The start does not wait for it."""
    (tmp_path / "net").mkdir()
    os.mkfifo(tmp_path / "net" / "labels.txt")
    with pytest.raises(RepositoryError, match=r"labels\.txt cannot be read"):
        read(tmp_path, f'output {TENSOR} label_filename: "labels.txt" }}')


def test_configuration_that_is_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    """A model is not served without the configuration that its folder names."""
    (tmp_path / "config.pbtxt").symlink_to("missing")
    with pytest.raises(RepositoryError, match="cannot be read"):
        read_triton_config(tmp_path)


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/../../x"])
def test_data_of_a_warm_up_outside_its_folder_is_refused(tmp_path: Path, file: str) -> None:
    """Only files below `warmup` are read."""
    value = f'value {{ data_type: TYPE_FP32 dims: 4 input_data_file: "{file}" }}'
    with pytest.raises(RepositoryError, match="must be below the folder warmup"):
        read(tmp_path, f'model_warmup {{ name: "w" inputs {{ key: "x" {value} }} }}')


def test_configuration_with_every_field_can_be_sent_to_a_device_process(tmp_path: Path) -> None:
    """Values without quotes become plain texts, which messages hold."""
    config = read(
        tmp_path,
        """
        max_batch_size: 8
        input { name: "x" data_type: TYPE_FP32 dims: 4 }
        output { name: "y" data_type: TYPE_FP32 dims: 4 }
        instance_group { kind: KIND_CPU count: 2 }
        model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }
        """,
    )
    message = LoadModel(
        Deployment(
            "net", 1, "onnx", tmp_path, tmp_path, 0, 8, declaration=config.declaration, warm_up=config.warm_up
        )
    )
    assert DEVICE_END.decode(SUPERVISOR_END.encode(message)) == message
