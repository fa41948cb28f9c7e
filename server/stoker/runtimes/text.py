"""Models of texts: rows of tokens run in parts of like length, padded within each part.

Padding is outside of the attention mask. Whether it changes no answer is tested when the model is loaded, together
with whether rows affect each other; if either fails, each row runs alone.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Final

import numpy as np

from stoker.deployment import Deployment, KeptFindings
from stoker.errors import LoadFailed
from stoker.isolation.batch_monitor import BatchMonitor
from stoker.isolation.batching import decide_batching
from stoker.isolation.difference import largest_difference
from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.row_isolation import RowIsolation
from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.token_batches import TokenCosts, padded_lengths
from stoker.runtimes.token_feeds import TokenFeeds
from stoker.samples.text_sample import find_text_sample
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, Signature, TensorInfo, TensorSpec, check_batch
from stoker.wire.texts import SEGMENT_BITS, TEXT, Tokenizing, UnusableTokenizer, text_tensors

logger = logging.getLogger(__name__)

_BOUND: Final = 1e-3
_REDUCED: Final = {"tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}
"""How much padding may change an answer, relative to the largest number of the output: kernels of other shapes round
differently."""
_TIMED_S: Final = 0.3
_TIMED_TOKENS: Final = 64
_RUNS: Final = 3
_GAIN: Final = 1.05
_MOST_ROWS: Final = 1 << 11


def text_runtime(
    deployment: Deployment,
    run: Run,
    tensors: ModelTensors,
    read: Callable[[], GraphAnalysis] | None,
    computed_in: str | None,
) -> TextRuntime | None:
    """Make the runtime of a model with a tokenizer; None if it takes no texts, and does not have to.

    Args:
        read: Reads its graph; None if there is nothing to read.
        computed_in: The precision of its products, where it may be lower than that of its tensors.

    Raises:
        LoadFailed: Its tokenizer cannot be used, or it takes no texts where its settings say that it does.
    """
    text = deployment.text
    assert text is not None, "its tokenizer was found"
    try:
        if not tensors.batched:
            raise LoadFailed("its inputs have no batch axis")  # noqa: TRY301  # one of several reasons
        feeds = TokenFeeds(tensors.inputs)
        tokenizing = Tokenizing(text)
        feeds.pad_id = tokenizing.pad_id
        if 0 < feeds.fixed_tokens < text.max_tokens:
            raise LoadFailed(f"its rows have {feeds.fixed_tokens} tokens: set max_tokens to that")  # noqa: TRY301
        rows, _ = find_text_sample(deployment, text)
        outputs = _outputs_of_rows(run, feeds, rows, tensors.outputs, text.labels)
        _check_largest_id(run, feeds, tokenizing.find_largest_id())
    except UnusableTokenizer:
        raise
    except LoadFailed as error:
        if text.is_required:
            raise LoadFailed(f"{deployment.name} cannot take texts: {error}") from error
        logger.info("%s takes no texts, only numbers: %s", deployment.name, error)
        return None
    infos = [TensorInfo(spec.name, spec.dtype, (-1, *spec.shape), labels=spec.labels) for spec in outputs]
    row = TensorSpec(TEXT, "int32", (1 + text.max_tokens,))
    signature = Signature((row,), outputs, callers=text_tensors(infos))
    most, key = feeds.fixed_tokens or text.max_tokens, deployment.file_key()
    isolation, costs = _findings.get(key) or (None, None)
    if isolation is None:
        # Rows of one length, so that only what is beside a row can change its answer.
        size = feeds.fixed_tokens or min(most, int(padded_lengths(rows[:, 0].max() + 1)))
        padded = TextRuntime(run, feeds, signature, TokenCosts(0, 1, 1 << 30, size, size))
        takes = ModelTensors((TensorInfo(TEXT, "int32", (-1, *row.shape)),), tuple(infos), batched=True)
        isolation = decide_batching(deployment, padded.run_rows, takes, read, {TEXT: rows}, computed_in)
        if isolation.batched and not feeds.fixed_tokens:
            alone = TextRuntime(run, feeds, signature)
            isolation = _with_padding(isolation, padded, alone, rows, _REDUCED.get(computed_in or "", _BOUND))
        if isolation.batched or feeds.fixed_tokens:
            most_rows = deployment.max_batch_rows if isolation.batched else 1
            costs = _measure(run, feeds, rows, most, most_rows)
        logger.info("%s: its texts are %s", deployment.name, isolation)
        _findings.keep(key, (isolation, costs))
    return TextRuntime(run, feeds, dataclasses.replace(signature, isolation=isolation), costs)


_findings: Final = KeptFindings[tuple[RowIsolation, TokenCosts | None]]()


class TextRuntime:
    """Runs rows of tokens through a function of named tensors.

    Attributes:
        signature: Rows of tokens, and the outputs of a row.
        costs: Divides batches into parts of like length; None to run each row alone, without padding.
        instances: See `TokenRuntime`; 1 unless the loader of its framework has set it.
        monitor: Inspects the parts that it runs.
        choice: See `ChosenRuntime`; empty unless the loader of its framework has set it.
    """

    choice, instances = "", 1

    def __init__(
        self, run: Run, feeds: TokenFeeds, signature: Signature, costs: TokenCosts | None = None
    ) -> None:
        """Wrap `run`, which each fork calls from a thread of its own."""
        self.signature, self.costs = signature, costs
        self.monitor = BatchMonitor()
        self._model, self._feeds = run, feeds

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> list[np.ndarray]:
        """Run a batch of rows; those without a token fill it up, and get zeros."""
        return list(self.run_rows({TEXT: np.asarray(inputs[0])}).values())

    def run_rows(self, rows_by_name: Feeds) -> Mapping[str, np.ndarray]:
        """Run rows, and return the outputs by name."""
        rows = rows_by_name[TEXT]
        if not 0 <= rows[:, 0].min() <= rows[:, 0].max() < rows.shape[1]:
            raise ValueError("a row has more tokens than fit")
        specs = self.signature.outputs
        outputs = {spec.name: np.zeros((len(rows), *spec.shape), spec.dtype) for spec in specs}
        lengths = rows[:, 0]
        alone = (([place], int(lengths[place])) for place in np.flatnonzero(lengths).tolist())
        for places, tokens in alone if self.costs is None else self.costs.divide(lengths):
            feeds = self._feeds.feeds(rows[places], tokens)
            results = self._model(feeds)
            found = {spec.name: check_batch(spec, results[spec.name], len(places)) for spec in specs}
            self.monitor.count_non_finite((), found.values(), len(places))
            if self.monitor.wants_rows and len(places) > 1:
                self.monitor.keep_rows(feeds, found, range(len(places) + 1))
            for name, array in found.items():
                outputs[name][places] = array
        return outputs

    def run_tensors(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """Run one part, as the inputs of the model."""
        return self._model(feeds)

    def fork(self) -> TextRuntime:
        """Return another runtime of the same model."""
        fork = copy(self)
        fork.monitor = BatchMonitor()
        return fork


def _outputs_of_rows(
    run: Run, feeds: TokenFeeds, rows: np.ndarray, outputs: Sequence[TensorInfo], labels: tuple[str, ...]
) -> tuple[TensorSpec, ...]:
    """Return the outputs that have one size for texts of any length, found by running two rows at two lengths."""
    size = int(rows[:2, 0].max())
    shapes = []
    for tokens in {feeds.fixed_tokens} if feeds.fixed_tokens else {size, min(size + 1, rows.shape[1] - 1)}:
        try:
            results = run(feeds.feeds(rows[:2], tokens))
        except Exception as error:
            raise LoadFailed(f"it fails on texts of {tokens} tokens: {error}") from error
        shapes.append({name: (array.dtype.name, array.shape) for name, array in results.items()})
    found = []
    for info in outputs:
        dtype, shape = shapes[0][info.name]
        if (
            shapes[-1][info.name] == (dtype, shape)
            and shape[:1] == (len(rows[:2]),)
            and dtype in NUMERIC_DTYPES
        ):
            own = info.labels or (labels if shape[1:] == (len(labels),) else ())
            found.append(TensorSpec(info.name, dtype, shape[1:], labels=own))
    if not found:
        raise LoadFailed(
            f"its outputs are {', '.join(map(str, outputs))}, with a size for each token; import it with its pooling "
            "(stoker models import)"
        )
    return tuple(found)


def _check_largest_id(run: Run, feeds: TokenFeeds, largest: int) -> None:
    """Raise LoadFailed if the model has fewer tokens than its tokenizer: then some texts would fail."""
    if largest >> SEGMENT_BITS:
        raise LoadFailed(f"its tokenizer has the id {largest}; ids have up to {SEGMENT_BITS} bits")
    try:
        run(feeds.feeds(np.array([[1, largest]], np.int32), feeds.fixed_tokens or 1))
    except Exception as error:
        raise LoadFailed(
            f"its tokenizer has ids of tokens up to {largest}, and the model fails on that one: {error}"
        ) from error


def _with_padding(
    isolation: RowIsolation, padded: TextRuntime, alone: TextRuntime, rows: np.ndarray, bound: float
) -> RowIsolation:
    """Return the finding, refuted if padding changes the answer to a row by more than `bound`.

    Args:
        alone: Runs each row at its own length.
    """
    differences = [
        largest_difference(padded.run([rows[place : place + 1]]), alone.run([rows[place : place + 1]]))
        for place in range(len(rows))
    ]
    if (most := max(differences)) <= bound:
        return isolation
    return RowIsolation(False, "tested", f"padding changes answers by {most:.2g} of the largest number")


def _measure(run: Run, feeds: TokenFeeds, rows: np.ndarray, longest: int, most_rows: int) -> TokenCosts:
    """Time parts that grow while larger ones compute more tokens a second.

    Args:
        most_rows: The rows of the largest batch; a program of PyTorch may refuse more.
    """
    row, fixed = rows[rows[:, 0].argmax()], feeds.fixed_tokens
    few, tokens = fixed or 8, fixed or min(_TIMED_TOKENS, longest)
    words = np.resize(row[1 : 1 + row[0]], tokens)

    def time_ns(count: int, tokens: int) -> float:
        made = np.tile(np.concatenate(([tokens], words[:tokens])).astype(np.int32), (count, 1))
        return 1e9 * min(timeit.repeat(partial(run, feeds.feeds(made, tokens)), number=1, repeat=_RUNS))

    first_ns, until_s = time_ns(1, few), time.perf_counter() + _TIMED_S
    taken_ns = {}
    for count in (1 << power for power in range(min(most_rows, _MOST_ROWS).bit_length())):
        taken_ns[count] = time_ns(count, tokens) / (count * tokens)
        if time.perf_counter() > until_s:
            break
    token_ns = min(taken_ns.values())
    count = next(count for count, each_ns in taken_ns.items() if each_ns <= _GAIN * token_ns)
    return TokenCosts(max(0.0, first_ns - few * token_ns), token_ns, count * tokens, longest, fixed)
