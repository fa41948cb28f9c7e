"""Writes the SavedModels beside this file: python make.py, once with each TensorFlow that README.md lists.

Each folder has, beside the model, `expected.json`: for each signature inputs, and the outputs that the TensorFlow which
wrote it gave for them. Runs on Python 3.6 and newer.
"""

import base64
import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
ROWS = np.array([[1, 2, 3, 4], [0.5, -1, 0.25, 8]], np.float32)
v1 = tf.compat.v1 if VERSION > (1, 12) else tf


def folder(name):
    path = os.path.join(HERE, "tf{}_{}_{}".format(VERSION[0], VERSION[1], name))
    if os.path.exists(path):
        sys.exit("{} is there already".format(path))
    return path


def plain(value):
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return plain(value.tolist()) if isinstance(value, (np.ndarray, np.generic)) else value


def expect(path, cases):
    """Write for each signature its inputs and outputs, as JSON has them in TensorFlow Serving's API."""
    with open(os.path.join(path, "expected.json"), "w") as file:
        json.dump(
            {name: plain({"inputs": i, "outputs": o}) for name, (i, o) in cases.items()}, file, indent=1
        )
        file.write("\n")


def save_graph(name, build, tags=(["serve"],)):
    """Write a graph of TensorFlow 1: `build` returns signatures, feeds of each, and what initialises tables."""
    path = folder(name)
    builder = v1.saved_model.builder.SavedModelBuilder(path)
    cases = {}
    for number, tagged in enumerate(tags):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(5)
            signatures, feeds, more = build()
            session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            for key, signature in signatures.items():
                values = {signature.inputs[each].name: value for each, value in feeds[key].items()}
                fetched = session.run({each: info.name for each, info in signature.outputs.items()}, values)
                if tagged == ["serve"]:
                    cases[key] = (feeds[key], fetched)
            if number:
                builder.add_meta_graph(tagged, signature_def_map=signatures, **more)
            else:
                builder.add_meta_graph_and_variables(session, tagged, signature_def_map=signatures, **more)
    builder.save()
    expect(path, cases)


def signature(inputs, outputs, method="tensorflow/serving/predict"):
    info = v1.saved_model.utils.build_tensor_info
    return v1.saved_model.signature_def_utils.build_signature_def(
        {name: info(tensor) for name, tensor in inputs.items()},
        {name: info(tensor) for name, tensor in outputs.items()},
        method,
    )


def dense():
    """Variables as TensorFlow 1 has them by default, of a graph that two sets of tags share."""
    x = v1.placeholder(tf.float32, [None, 4], "x")
    w = v1.get_variable("w", [4, 3])
    scores = tf.nn.softmax(tf.matmul(x, w) / 10)
    return {"serving_default": signature({"x": x}, {"scores": scores})}, {"serving_default": {"x": ROWS}}, {}


def switches():
    """An input of unknown rank and a scalar, as slim's networks have them."""
    x = v1.placeholder(tf.float32, [None, 4], "x")
    phase, keep = v1.placeholder(tf.bool, name="phase_train"), v1.placeholder(tf.float32, [], "keep_prob")
    w = v1.get_variable("w", [4, 2], use_resource=True)
    y = tf.cond(phase, lambda: x * 0, lambda: x * keep)
    made = signature({"image": x, "phase_train": phase, "keep_prob": keep}, {"embeddings": tf.matmul(y, w)})
    fed = {"image": ROWS, "phase_train": np.bool_(False), "keep_prob": np.float32(0.5)}
    return {"serving_default": made}, {"serving_default": fed}, {}


def picture():
    """One encoded image, a scalar."""
    encoded = v1.placeholder(tf.string, [], "encoded")
    pixels = tf.cast(tf.image.decode_png(encoded, 3), tf.float32)
    means = tf.reduce_mean(pixels, [0, 1])
    with tf.Graph().as_default(), v1.Session() as session:
        pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
        png = session.run(tf.image.encode_png(pixels))
    return (
        {"serving_default": signature({"image_bytes": encoded}, {"means": means})},
        {"serving_default": {"image_bytes": png}},
        {},
    )


def words():
    """A table whose words are an asset, and classes by name."""
    asset = os.path.join(tempfile.mkdtemp(), "words.txt")
    with open(asset, "w") as file:
        file.write("no\nyes\nmaybe\n")
    lookup = tf.contrib.lookup if VERSION == (1, 12) else None
    texts = v1.placeholder(tf.string, [None], "texts")
    if lookup is not None:
        table = lookup.index_table_from_file(asset, num_oov_buckets=1)
    else:
        whole, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        initializer = tf.lookup.TextFileInitializer(asset, tf.string, whole, tf.int64, number)
        table = v1.lookup.StaticVocabularyTable(initializer, 1)
    made = {"serving_default": signature({"texts": texts}, {"places": table.lookup(texts)})}
    more = {
        "assets_collection": v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
        ("legacy_init_op" if VERSION == (1, 12) else "main_op"): v1.tables_initializer(),
    }
    return made, {"serving_default": {"texts": np.array([b"yes", b"what", b"no"], object)}}, more


def estimator(name):
    """Signatures of an estimator, whose examples are parsed in the graph."""
    column = tf.feature_column.numeric_column("x", [4])
    made = tf.estimator.LinearClassifier([column], model_dir=None)
    made.train(v1.estimator.inputs.numpy_input_fn({"x": ROWS}, np.array([0, 1]), shuffle=False), steps=3)
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        {"x": v1.FixedLenFeature([4], tf.float32)}
    )
    export = getattr(made, "export_saved_model", None) or made.export_savedmodel
    written = export(folder(name) + ".tmp", receiver).decode()
    path = folder(name)
    os.rename(written, path)
    os.rmdir(os.path.dirname(written))
    with tf.Graph().as_default(), v1.Session() as session:
        meta = v1.saved_model.loader.load(session, ["serve"], path)
        raw = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=ROWS[1]))}
        example = tf.train.Example(features=tf.train.Features(feature=raw)).SerializeToString()
        cases = {}
        for key, each in meta.signature_def.items():
            feeds = {next(iter(each.inputs.values())).name: [example]}
            given = session.run({name: info.name for name, info in each.outputs.items()}, feeds)
            cases[key] = ({next(iter(each.inputs)): [{"example": {"x": ROWS[1]}}]}, given)
    expect(path, cases)


def keras(name, optimizer, fits=True):
    tf.random.set_seed(5) if VERSION > (2, 0) else v1.set_random_seed(5)
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,), activation="softmax")])
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    if fits:
        model.fit(ROWS, np.array([0, 2]), verbose=0)
    path = folder(name)
    model.save(path, save_format="tf")
    (given,) = model.input_names
    (gotten,) = model.output_names
    expect(
        path,
        {
            "serving_default": (
                {given + "_input" * (not given.endswith("_input")): ROWS},
                {gotten: model.predict(ROWS)},
            )
        },
    )


def texts(name):
    """A layer that looks words up, in tables and constants that the object graph has no names for."""
    tf.random.set_seed(5)
    words = tf.keras.layers.TextVectorization(max_tokens=9, output_sequence_length=3)
    words.adapt(np.array(["a b c", "b c d"]))
    layers = tf.keras.layers
    inputs = layers.Input((1,), dtype=tf.string, name="text")
    outputs = layers.GlobalAveragePooling1D()(layers.Embedding(9, 2)(words(inputs)))
    model, path = tf.keras.Model(inputs, outputs), folder(name)
    model.compile("adam", "mse")
    given = np.array([["a b"], ["d"]])
    model.fit(given, np.zeros((2, 2)), verbose=0)
    model.save(path, save_format="tf")
    expect(path, {"serving_default": ({"text": given}, {model.output_names[0]: model.predict(given)})})


def functions(name):
    """Two functions of a module: one looks words up, the other counts its calls."""

    class Both(tf.Module):
        def __init__(self):
            super(Both, self).__init__()
            self.count = tf.Variable(10.0)
            # The names of checkpoints are joined by dots, so these have some.
            self.parts = {"a.b": tf.Variable([1.0, 2.0, 3.0, 4.0]), "c": [tf.Variable(2.0)]}
            values = tf.lookup.KeyValueTensorInitializer(["no", "yes"], [0, 1], tf.string, tf.int64)
            self.table = tf.lookup.StaticHashTable(values, -1)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")])
        def places(self, texts):
            return {"places": self.table.lookup(texts)}

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")])
        def counted(self, x):
            scaled = x * self.parts["a.b"] * self.parts["c"][0]
            return {"y": scaled, "count": self.count.assign_add(1.0) + tf.zeros_like(x[:, 0])}

    module, path = Both(), folder(name)
    texts = np.array([b"yes", b"what"], object)
    tf.saved_model.save(module, path, signatures={"serving_default": module.counted, "places": module.places})
    expect(
        path,
        {
            "serving_default": (
                {"x": ROWS},
                {n: t.numpy() for n, t in module.counted(tf.constant(ROWS)).items()},
            ),
            "places": (
                {"texts": texts},
                {n: t.numpy() for n, t in module.places(tf.constant(texts)).items()},
            ),
        },
    )


def main():
    if VERSION == (1, 12):
        save_graph("dense", dense)
        save_graph("switches", switches)
        save_graph("picture", picture)
        save_graph("words", words)
    elif VERSION == (1, 15):
        save_graph("tags", dense, (["serve"], ["train"]))
        save_graph("words", words)
        estimator("estimator")
        keras("adam", "adam")
    elif VERSION == (2, 1):
        keras("adam", "adam")
        functions("functions")
    elif VERSION == (2, 4):
        keras("rmsprop", "rmsprop")
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        keras("loss_scale", "adam")
    elif VERSION == (2, 6):
        keras("adam", "adam")
        texts("texts")
    elif VERSION == (2, 11):
        keras("adam", "adam")
        keras("legacy_adam", tf.keras.optimizers.legacy.Adam())
    elif VERSION == (2, 15):
        keras("rmsprop", "rmsprop")
        functions("functions")


main()
