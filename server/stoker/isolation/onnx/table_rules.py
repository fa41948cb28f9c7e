"""Rules of operators of classical machine learning (ai.onnx.ml) and of text operators."""

from __future__ import annotations

from stoker.isolation.onnx.elementwise_rules import per_row
from stoker.isolation.onnx.operator_rules import (
    ANOTHER_AXIS,
    MICROSOFT,
    ML,
    Call,
    rule,
)
from stoker.isolation.onnx.row_states import Value, same
from stoker.isolation.onnx.sizes import Dim


def _table(call: Call, index: int = 0) -> Dim:
    """Return the number of rows of a table; raises Mixed for a vector, which is treated as one row."""
    shape = call.shape(index)
    if call.batch_axis(index) is not None and len(shape) == 1:
        call.mixed("takes the batch for one row")
    if call.batch_axis(index) not in {None, 0} or len(shape) != 2:
        call.undecided(ANOTHER_AXIS)
    return shape[0]


@rule("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier", domain=ML)
def _classifier(call: Call) -> list[Value]:
    rows = _table(call)
    batch = call.batch_axis(0)
    return [call.give([rows], batch), call.give([rows, call.free()], batch)]


@rule("TreeEnsembleRegressor", "TreeEnsemble", "LinearRegressor", "SVMRegressor", domain=ML)
def _regressor(call: Call) -> Value:
    call.only(0)
    targets = call.attributes.get("n_targets", call.attributes.get("targets", 1))
    known = isinstance(targets, int) and call.node.operator != "SVMRegressor"
    return call.give(
        [_table(call), int(targets) if known and isinstance(targets, int) else call.free()],
        call.batch_axis(0),
    )


@rule("Normalizer", domain=ML)
def _normalizer(call: Call) -> Value:
    _table(call)
    return per_row(call)


@rule("Scaler", "Imputer", domain=ML)
def _column_by_column(call: Call) -> Value:
    if call.batch_axis(0) is not None:
        _table(call)
    return per_row(call)


@rule("TfIdfVectorizer")
def _counts_of_words(call: Call) -> Value:
    return call.give([_table(call), call.free()], call.batch_axis(0))


@rule("OneHotEncoder", domain=ML)
def _one_hot(call: Call) -> Value:
    return call.give([*call.shape(0), call.free()], call.batch_axis(0))


@rule("ArrayFeatureExtractor", domain=ML)
def _columns(call: Call) -> Value:
    call.only(0)
    rows = _table(call)
    return call.give([rows, call.free()], call.batch_axis(0))


@rule("FeatureVectorizer", domain=ML)
def _beside_each_other(call: Call) -> Value:
    values = [value for value in call.inputs if value is not None]
    rows = [_table(call, index) for index in range(len(values))]
    if any(not value.is_rows for value in values):
        call.undecided("puts a constant beside the rows")
    return call.give([rows[0], call.free()], 0)


@rule("StringNormalizer")
def _string_normalizer(call: Call) -> Value:
    if call.value(0).is_rows and call.attributes.get("stopwords"):
        call.mixed("drops words of the batch")
    return per_row(call)


@rule("StringSplit")
def _string_split(call: Call) -> list[Value]:
    value = call.value(0)
    if not value.is_rows:
        return [same(), same(value.shape)]
    words = Value(
        "lost", finding="mixed", reason=f"{call.node} makes all rows as long as the one with the most words"
    )
    return [words, value]


@rule("Tokenizer", domain=MICROSOFT)
def _tokenizer(call: Call) -> Value:
    if call.value(0).is_rows:
        # Models converted from scikit-learn's vectorisers count words and ignore the padding, so rows are tested.
        call.undecided("makes all rows as long as the one with the most words")
    return same()
