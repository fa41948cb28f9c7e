"""The analysis of the graphs of SavedModels agrees with their answers."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, Device
from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.isolation.tensorflow.analysis import analyse_function
from stoker.runtimes.tensorflow import load_saved_model

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

ROWS = 3
TEXTS = [b"and three more", b"two words", b"one"]
OTHER_TEXTS = [b"", b"a much longer text than any of the others has", b"one"]


class Zoo:
    """Signatures of one SavedModel.

    Each entry has the kind of its input, the expected finding, and the type of the operator that it names.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self.tf = tf
        self.kinds: dict[str, str] = {}
        self.expected: dict[str, tuple[str, str]] = {}
        self._module = tf.Module()
        self._signatures: dict[str, Any] = {}
        self._specs = {
            "vectors": tf.TensorSpec([None, 4], tf.float32, "x"),
            "numbers": tf.TensorSpec([None], tf.float32, "x"),
            "sequences": tf.TensorSpec([None, 6, 4], tf.float32, "x"),
            "free": tf.TensorSpec([None, None, 4], tf.float32, "x"),
            "images": tf.TensorSpec([None, 8, 8, 2], tf.float32, "x"),
            "indices": tf.TensorSpec([None, 5], tf.int32, "x"),
            "texts": tf.TensorSpec([None], tf.string, "x"),
            "examples": tf.TensorSpec([None], tf.string, "x"),
        }
        _add_plain(self)
        _add_shapes(self)
        _add_layers(self)
        _add_control_flow(self)
        _add_texts(self)
        tf.saved_model.save(self._module, str(folder), signatures=self._signatures)
        self._loaded = tf.saved_model.load(str(folder))
        self.functions = dict(self._loaded.signatures)

    def keep(self, thing: Any) -> Any:
        """Make a variable, layer or table part of the module."""
        held = getattr(self._module, "held", [])
        self._module.held = [*held, thing]
        return thing

    def add(self, name: str, kind: str, finding: str, function: Callable[[Any], Any], node: str = "") -> None:
        def signature(x: Any) -> dict[str, Any]:
            return {"y": function(x)}

        # Converting each function's source would take most of the time; none has Python control flow.
        traced = self.tf.function(signature, input_signature=[self._specs[kind]], autograph=False)
        setattr(self._module, f"signature_{name}", traced)
        self._signatures[name] = traced
        self.kinds[name], self.expected[name] = kind, (finding, node)

    def batch(self, kind: str, seed: int) -> np.ndarray:
        """Return rows whose last is the same for each seed: an operator along the batch reaches it."""
        if kind == "texts":
            return np.array(TEXTS if seed == 0 else OTHER_TEXTS, object)
        if kind == "examples":
            numbers = (
                [[5.0, 6.0], [3.0, 4.0], [1.0, 2.0]] if seed == 0 else [[7.0, 7.0], [9.0, 9.0], [1.0, 2.0]]
            )
            return np.array([self._example(pair) for pair in numbers], object)
        sizes = [6 if size is None else size for size in self._specs[kind].shape[1:]]
        random = np.random.default_rng(seed)
        rows = random.random((ROWS, *sizes)) * (1000.0 if seed else 1.0)
        rows[-1] = np.random.default_rng(7).random(sizes)
        if kind == "indices":
            rows = np.floor(rows * 8) % 8
        return rows.astype(np.int32 if kind == "indices" else np.float32)

    def _example(self, pair: list[float]) -> bytes:
        feature = self.tf.train.Feature(float_list=self.tf.train.FloatList(value=pair))
        texts = self.tf.train.Feature(bytes_list=self.tf.train.BytesList(value=[b"t"] * int(pair[0])))
        features = self.tf.train.Features(feature={"pair": feature, "texts": texts})
        return bytes(self.tf.train.Example(features=features).SerializeToString())

    def read(self, name: str) -> GraphAnalysis:
        return analyse_function(self.functions[name])

    def last_row_changes(self, name: str) -> bool:
        """Whether the last row's answer changes a bit beside other rows, at the same size and place."""
        answers = []
        for seed in (0, 1, 2):
            tensor = self.tf.constant(self.batch(self.kinds[name], seed), self._specs[self.kinds[name]].dtype)
            answers.append(self.functions[name](x=tensor)["y"].numpy())
        return len({(answer.shape[1:], answer[-1].tobytes()) for answer in answers}) > 1


def _add_plain(zoo: Zoo) -> None:
    tf = zoo.tf
    w = zoo.keep(tf.Variable(np.random.default_rng(1).random((4, 4)), dtype=tf.float32))
    add = zoo.add
    add("affine", "vectors", "apart", lambda x: tf.nn.relu(x @ w + w[0]))
    add("batch_mean", "vectors", "mixed", lambda x: x + 1e-3 * tf.reduce_mean(x), "Mean")
    add("row_mean", "vectors", "apart", lambda x: x + 1e-3 * tf.reduce_mean(x, -1, keepdims=True))
    add("cumsum", "vectors", "mixed", lambda x: tf.cumsum(x, 0), "Cumsum")
    add("cumsum_in_row", "vectors", "apart", lambda x: tf.cumsum(x, 1))
    add("softmax_of_batch", "numbers", "mixed", tf.nn.softmax, "Softmax")
    add("softmax", "vectors", "apart", tf.nn.softmax)
    add("reversed", "vectors", "mixed", lambda x: x - tf.reverse(x, [0]), "ReverseV2")
    add("reversed_in_row", "vectors", "apart", lambda x: x - tf.reverse(x, [1]))
    add("distinct", "numbers", "mixed", lambda x: tf.unique(tf.round(x * 3)).idx, "Unique")
    add("distinct_looked_up", "numbers", "unknown", lambda x: tf.gather(*tf.unique(x)), "Unique")
    add("similarities", "vectors", "mixed", lambda x: tf.matmul(x, x, transpose_b=True) @ x, "MatMul")
    add("attention", "sequences", "apart", lambda x: tf.nn.softmax(tf.matmul(x, x, transpose_b=True)) @ x)
    add("contracted", "vectors", "mixed", lambda x: x @ tf.matmul(x, x, transpose_a=True), "MatMul")
    add("einsum", "sequences", "apart", lambda x: tf.einsum("abc,cd->adb", x, w))
    add(
        "einsum_over_rows",
        "sequences",
        "mixed",
        lambda x: tf.einsum("abc,abd->cd", x, x)[None] + x[:, 0, :1, None],
        "Einsum",
    )
    add("first_row", "vectors", "unknown", lambda x: x + x[0], "StridedSlice")
    add("column", "vectors", "apart", lambda x: x * x[:, 2:3] + x[..., -1:])
    add("times_rows", "vectors", "unknown", lambda x: x * tf.cast(tf.shape(x)[0], tf.float32), "Mul")
    add("places", "numbers", "unknown", lambda x: x + tf.cast(tf.range(tf.shape(x)[0]), tf.float32), "AddV2")
    add("flattened", "sequences", "apart", lambda x: tf.reshape(tf.reshape(x, [-1, 4]) @ w, tf.shape(x)))
    add("folded", "sequences", "apart", lambda x: tf.reshape(x, [tf.shape(x)[0], -1]))
    add("folded_by_size", "images", "apart", lambda x: tf.reshape(x, [-1, 128]))
    add(
        "cut_rows",
        "vectors",
        "unknown",
        lambda x: tf.reshape(tf.reshape(x, [-1, 3]) * [1.0, 2, 3], tf.shape(x)),
        "Reshape",
    )
    add(
        "moved",
        "sequences",
        "apart",
        lambda x: tf.transpose(tf.cumsum(tf.transpose(x, [1, 0, 2]), 0), [1, 0, 2]),
    )
    add(
        "moved_wrongly",
        "sequences",
        "mixed",
        lambda x: tf.transpose(tf.cumsum(tf.transpose(x, [1, 0, 2]), 1), [1, 0, 2]),
        "Cumsum",
    )
    add("token", "vectors", "apart", lambda x: tf.concat([tf.broadcast_to(w[:1], [tf.shape(x)[0], 4]), x], 1))
    add("other_order", "vectors", "unknown", lambda x: x[::-1], "StridedSlice")
    add("best", "vectors", "apart", lambda x: tf.math.top_k(x, 2).values)
    add("best_rows", "numbers", "mixed", lambda x: x - tf.math.top_k(x, 1).values, "TopKV2")
    add("chosen", "numbers", "unknown", lambda x: tf.boolean_mask(x, x > 0.5), "Where")
    add(
        "quantized",
        "vectors",
        "mixed",
        lambda x: tf.quantization.fake_quant_with_min_max_vars(x, tf.reduce_min(x), tf.reduce_max(x)),
        "Min",
    )
    add(
        "quantized_alike",
        "vectors",
        "apart",
        lambda x: tf.quantization.fake_quant_with_min_max_vars(x, 0.0, 6.0),
    )


def _add_shapes(zoo: Zoo) -> None:
    tf = zoo.tf
    random = np.random.default_rng(9)
    w = zoo.keep(tf.Variable(random.random((4, 4)), dtype=tf.float32))
    add = zoo.add

    def turned(x: Any) -> Any:
        """The rows in the middle."""
        return tf.transpose(x, [1, 0, 2])

    def listed(x: Any) -> Any:
        """The steps of each row, one after the other, through a list of tensors."""
        steps = tf.TensorArray(tf.float32, 6).unstack(turned(x))
        doubled = tf.TensorArray(tf.float32, 6, element_shape=[None, 4])
        for place in tf.range(6):
            doubled = doubled.write(place, steps.read(place) * 2.0)
        return turned(doubled.stack())

    add("a_new_axis", "vectors", "apart", lambda x: tf.expand_dims(x, 0)[0] + tf.expand_dims(x, -1)[..., 0])
    add("an_axis_less", "sequences", "apart", lambda x: tf.squeeze(x[:, :1], [1]))
    add("any_axis_less", "sequences", "unknown", lambda x: tf.squeeze(x[:, :1]), "Squeeze")
    add("an_axis_less_before", "sequences", "apart", lambda x: tf.squeeze(turned(x)[:1], [0]))
    add(
        "a_part_with_dots",
        "images",
        "apart",
        lambda x: x[..., 2:4, 0] + x[:, tf.newaxis, ..., 1][:, 0, :, 2:4],
    )
    add("a_part_of_the_middle", "sequences", "apart", lambda x: tf.transpose(turned(x)[1:3, :, 2]))
    add("a_slice", "sequences", "apart", lambda x: tf.slice(x, [0, 1, 0], [-1, 2, 4]))
    add("a_slice_of_the_rows", "sequences", "unknown", lambda x: x[1:] - tf.slice(x, [0, 0, 0], [2, 6, 4]))
    add("padded_rows", "vectors", "apart", lambda x: tf.pad(x, [[0, 0], [1, 2]], constant_values=3.0))
    add("padded_batch", "vectors", "unknown", lambda x: tf.pad(x, [[1, 0], [0, 0]]), "Pad")
    add("mirrored", "vectors", "apart", lambda x: tf.pad(x, [[0, 0], [1, 2]], "REFLECT"))
    add("joined", "vectors", "apart", lambda x: tf.concat([x, x * 2], -1))
    add("joined_rows", "vectors", "unknown", lambda x: tf.concat([x, x], 0)[: tf.shape(x)[0]])
    add("stacked", "vectors", "apart", lambda x: tf.stack([x, x + 1], 1))
    add("stacked_in_front", "vectors", "apart", lambda x: tf.reduce_sum(tf.stack([x, x + 1]), 0))
    add("unstacked", "sequences", "apart", lambda x: tf.add_n(tf.unstack(x, axis=1)))
    add("parted", "vectors", "apart", lambda x: tf.split(x, 2, -1)[1])
    add("parted_unevenly", "vectors", "apart", lambda x: tf.split(x, [1, 3], 1)[1])
    add("parted_rows", "vectors", "unknown", lambda x: tf.concat(tf.split(x, 3, 0)[::-1], 0))
    add("filled", "vectors", "apart", lambda x: x + tf.fill([tf.shape(x)[0], 4], 2.0))
    add("tiled", "vectors", "apart", lambda x: tf.tile(x, [1, 3]))
    add("tiled_rows", "vectors", "unknown", lambda x: tf.tile(x, [2, 1])[tf.shape(x)[0] :])
    add("broadcast", "vectors", "apart", lambda x: tf.broadcast_to(x[:, :1], [tf.shape(x)[0], 4]))
    add("listed", "sequences", "apart", tf.function(listed))
    add(
        "products_of_steps",
        "sequences",
        "apart",
        lambda x: tf.matmul(x, w) + tf.matmul(x, x, adjoint_a=True)[:, :1],
    )
    add("times_a_table", "sequences", "apart", lambda x: tf.matmul(w[None, :2], x, transpose_b=True))
    add("from_the_left", "vectors", "mixed", lambda x: tf.matmul(w[:, :3], x)[:3], "MatMul")
    add("einsum_with_dots", "sequences", "apart", lambda x: tf.einsum("...c,cd->...d", x, w))
    add("einsum_of_each", "sequences", "apart", lambda x: tf.einsum("abc,adc->abd", x, x))
    add("einsum_of_pairs", "vectors", "unknown", lambda x: tf.einsum("ab,cb->ac", x, x) @ x, "Einsum")
    add("columns", "vectors", "apart", lambda x: tf.gather(x, [2, 0], axis=1))
    add("rows_by_place", "vectors", "unknown", lambda x: tf.gather(x, [2, 1, 0]), "GatherV2")
    add(
        "own_columns",
        "vectors",
        "apart",
        lambda x: tf.gather(x, tf.argmax(x, 1)[:, None], axis=1, batch_dims=1),
    )
    add("steps_of_the_middle", "sequences", "apart", lambda x: turned(tf.gather(turned(x), [1, 0], axis=0)))
    add("points", "indices", "apart", lambda x: tf.gather_nd(w * 2.0, tf.reshape(x % 4, [-1, 5, 1])[:, :2]))
    add("points_of_rows", "indices", "unknown", lambda x: tf.gather_nd(x, [[0], [1], [2]]), "GatherNd")
    add("hot_in_front", "indices", "apart", lambda x: tf.transpose(tf.one_hot(x, 8, axis=0), [1, 0, 2]))
    add("argmax", "vectors", "apart", lambda x: tf.argmax(x, -1))
    add("argmax_of_rows", "numbers", "mixed", lambda x: x + tf.cast(tf.argmax(x), tf.float32), "ArgMax")
    add("biased", "images", "apart", lambda x: tf.nn.bias_add(x, [1.0, 2.0]))
    add(
        "biased_rows",
        "vectors",
        "unknown",
        lambda x: tf.transpose(tf.nn.bias_add(tf.transpose(x), [1.0, 2, 3])),
    )
    add("chosen_alike", "vectors", "apart", lambda x: tf.where(x > 0.5, x, w[0]))
    add("chosen_of_as_many", "vectors", "unknown", lambda x: tf.where(x > 0.5, x, w[:3]), "SelectV2")
    add(
        "convolved_backwards",
        "images",
        "apart",
        lambda x: tf.nn.conv2d_transpose(x, tf.ones([2, 2, 3, 2]), [tf.shape(x)[0], 16, 16, 3], 2),
    )
    add("resized", "images", "apart", lambda x: tf.image.resize(x, [4, 4]))
    add("sums_in_the_middle", "sequences", "apart", lambda x: tf.reduce_sum(turned(x), 0, keepdims=False))
    add("scaled_by_the_batch", "vectors", "mixed", tf.linalg.l2_normalize, "Sum")
    add("scaled_by_row", "vectors", "apart", lambda x: tf.linalg.l2_normalize(x, 1))


def _add_layers(zoo: Zoo) -> None:
    tf = zoo.tf
    table = zoo.keep(tf.Variable(np.random.default_rng(2).random((8, 4)), dtype=tf.float32))
    filters = zoo.keep(tf.Variable(np.random.default_rng(3).random((3, 3, 2, 2)), dtype=tf.float32))
    scale, offset = (zoo.keep(tf.Variable([value] * 2)) for value in (2.0, 1.0))
    add = zoo.add
    add("embedding", "indices", "apart", lambda x: tf.reduce_sum(tf.nn.embedding_lookup(table, x), 1))
    add("one_hot", "indices", "apart", lambda x: tf.one_hot(x, 8))
    add(
        "convolution",
        "images",
        "apart",
        lambda x: tf.nn.max_pool2d(tf.nn.conv2d(x, filters, 1, "SAME"), 2, 2, "VALID"),
    )
    add(
        "normalized_by_batch",
        "images",
        "mixed",
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, scale, offset, is_training=True)[0],
        "FusedBatchNormV3",
    )
    add(
        "normalized",
        "images",
        "apart",
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, scale, offset, offset, scale, is_training=False)[0],
    )
    gru = zoo.keep(tf.keras.layers.GRU(4, return_sequences=True))
    gru.build((None, 6, 4))
    add("recurrent", "sequences", "apart", gru)
    add(
        "recurrent_over_rows",
        "sequences",
        "unknown",
        lambda x: tf.transpose(gru(tf.transpose(x, [1, 0, 2])), [1, 0, 2]),
    )
    dense = zoo.keep(tf.keras.layers.Dense(4))
    attention = zoo.keep(tf.keras.layers.MultiHeadAttention(2, 4))
    norm = zoo.keep(tf.keras.layers.LayerNormalization())
    dense.build((None, None, 4))
    attention.build((None, None, 4), (None, None, 4))
    norm.build((None, None, 4))
    add("transformer", "sequences", "apart", lambda x: norm(dense(attention(x, x)) + x))
    add("transformer_of_any_length", "free", "apart", lambda x: norm(dense(x) + x))


def _add_control_flow(zoo: Zoo) -> None:
    tf = zoo.tf
    switch = zoo.keep(tf.Variable(True))
    count = zoo.keep(tf.Variable(0.0))

    def counted(x: Any) -> Any:
        count.assign_add(tf.reduce_sum(x))
        return x

    def looped(x: Any, condition: Callable[[Any, Any], Any]) -> Any:
        return tf.while_loop(condition, lambda i, y: (i + 1, y * 0.5), (0, x), maximum_iterations=50)[1]

    add = zoo.add
    add(
        "if_of_sum",
        "vectors",
        "mixed",
        lambda x: tf.cond(tf.reduce_sum(x) > 100, lambda: x * 2, lambda: x),
        "Sum",
    )
    add("if_of_variable", "vectors", "apart", lambda x: tf.cond(switch, lambda: x * 2, lambda: x))
    add(
        "one_branch_mixes",
        "vectors",
        "unknown",
        lambda x: tf.cond(switch, lambda: x - tf.reduce_max(x), lambda: x),
        "StatelessIf",
    )
    add(
        "case_of_rows",
        "vectors",
        "mixed",
        lambda x: tf.switch_case(tf.cast(tf.reduce_sum(x) > 100, tf.int32), [lambda: x, lambda: -x]),
        "Sum",
    )
    add("loop", "vectors", "apart", lambda x: looped(x, lambda i, _: i < 3))
    add(
        "loop_until_small",
        "vectors",
        "mixed",
        lambda x: looped(x, lambda _, y: tf.reduce_max(y) > 0.01),
        "Max",
    )
    add("loop_over_rows", "vectors", "unknown", lambda x: tf.map_fn(tf.square, x))
    add(
        "loop_that_mixes",
        "vectors",
        "mixed",
        lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y - tf.reduce_mean(y)), (0, x))[1],
        "Mean",
    )
    add("counted", "vectors", "unknown", counted, "AssignAddVariableOp")


def _add_texts(zoo: Zoo) -> None:
    tf = zoo.tf
    table = zoo.keep(
        tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["one", "two words"], [1.0, 2.0]), 0.0)
    )

    def padded(x: Any) -> Any:
        words = tf.strings.split(x).to_tensor("")
        return tf.reduce_mean(tf.cast(tf.strings.length(words), tf.float32), 1)

    def parsed(x: Any) -> Any:
        return tf.io.parse_example(x, {"pair": tf.io.FixedLenFeature([2], tf.float32)})["pair"]

    def parsed_to_the_longest(x: Any) -> Any:
        feature = tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)
        return tf.strings.length(tf.io.parse_example(x, {"texts": feature})["texts"])

    add = zoo.add
    add("padded_to_the_longest", "texts", "unknown", padded, "StringSplitV2")
    add(
        "hashed",
        "texts",
        "apart",
        lambda x: tf.strings.to_hash_bucket_fast(tf.strings.regex_replace(x, "o+", "u"), 99),
    )
    add("looked_up", "texts", "apart", lambda x: table.lookup(tf.strings.lower(x)))
    add("parsed", "examples", "apart", parsed)
    add("parsed_to_the_longest", "examples", "unknown", parsed_to_the_longest, "ParseExampleV2")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return Zoo(tmp_path_factory.mktemp("zoo"))


def test_finding_of_each_graph_is_as_expected(zoo: Zoo) -> None:
    """A mixed model names the operator that joins its rows, an unknown one its first unknown operator."""
    read = {name: zoo.read(name) for name in zoo.functions}
    assert {name: reading.finding for name, reading in read.items()} == {
        name: finding for name, (finding, _) in zoo.expected.items()
    }
    for name, (finding, node) in zoo.expected.items():
        assert f"{node} '" in read[name].reason or not node, (name, read[name])
        if finding == "apart":
            assert read[name].reason == ""


def test_findings_agree_with_measured_answers(zoo: Zoo) -> None:
    """Rows read as apart keep all bits beside other companions; rows read as mixed change."""
    changes = {
        name: zoo.last_row_changes(name)
        for name, (finding, _) in zoo.expected.items()
        if finding != "unknown"
    }
    assert changes == {name: zoo.expected[name][0] == "mixed" for name in changes}


@pytest.mark.parametrize(
    ("reduced", "reason"),
    [(1, "no operator lets a row see another, tested"), (0, "Mean 'Mean' joins the rows of a batch")],
)
def test_models_of_tensorflow_1_are_read_when_they_are_loaded(
    tmp_path: Path, reduced: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their functions have no shapes of their own; a switch that the signature does not feed has its default."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        # Tests that train in this process have switched determinism on.
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, [None, 4], "x")
        training = v1.placeholder_with_default(False, [], "training")
        w = v1.get_variable("w", [4, 3], use_resource=True)
        y = v1.cond(
            training, lambda: x[::-1] @ w, lambda: x @ w - tf.reduce_mean(x, reduced, keepdims=True)[:, :1]
        )
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "saved"))
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    # Its devices and threads can be set only once.
    monkeypatch.setattr("stoker.runtimes.tensorflow.import_tensorflow", lambda *_, **__: tf)
    deployment = Deployment("old", 1, "tensorflow", tmp_path / "saved", tmp_path / "saved", 8, 64)
    isolation = load_saved_model(deployment, Device("cpu", 0, "CPU"), 1).signature.isolation
    assert isolation is not None
    assert (isolation.batched, isolation.how) == (bool(reduced), "read")
    assert isolation.reason.startswith(reason)


def test_a_graph_that_cannot_be_read_is_unknown() -> None:
    """An exporter or another version of TensorFlow may make unreadable graphs: the test with rows decides."""

    class Broken:
        name = "broken"
        captured_inputs = ()

        class graph:  # noqa: N801  # as TensorFlow has it
            inputs = ()

            @staticmethod
            def get_operations() -> Any:
                raise AttributeError("no such thing")

    assert analyse_function(Broken) == GraphAnalysis("unknown", "its graph cannot be read")
