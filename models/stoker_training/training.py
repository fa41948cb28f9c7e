"""One training from the data to the published run folder."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker_training.digits import Digits, load_digits
from stoker_training.run_folder import (
    METRICS,
    WRITTEN_BY,
    check_target,
    check_writable,
    confusion_matrix,
    library_versions,
    mean_cross_entropy,
    replacing,
    write_history,
    write_json,
    write_sample,
)
from stoker_training.spec import TrainingResult, TrainingSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker_training.exports import Agreement
    from stoker_training.fitting import Fit
    from stoker_training.workers import Workers

ENTRY_SCRIPT = Path(__file__).parent / "mnist" / "score.py"
_print = partial(print, flush=True)


def train(
    spec: TrainingSpec,
    say: Callable[[str], None] = _print,
    log: Callable[[str, float, int | None], None] = lambda *_: None,
    run_id: str = "",
) -> TrainingResult | None:
    """Train as `spec` says and publish the run folder, complete or not at all.

    Where `TF_CONFIG` names several workers they train together; the first publishes, the others return None.

    Args:
        log: Gets the metrics, with their epoch where they have one.
        run_id: Id of the training run that this is, if it is one.

    Raises:
        OperatorError: The data is missing or damaged, the output folder is in use for something else or cannot be
            written, or the exported models disagree by more than `exports.TOLERANCE`.
    """
    check_target(spec.output)
    check_writable(spec.output)
    digits = None if spec.data is None else load_digits(spec.data, say)
    # TensorFlow takes seconds to import: what is wrong with the folders has been said by now.
    from stoker_training import exports, fitting, frameworks, workers

    gpus = frameworks.found_gpus()
    for line in frameworks.describe_devices(gpus):
        say(line)
    several = workers.Workers(have_gpus=bool(gpus)) if workers.are_several() else None
    if digits is None:
        digits = _load_in_turn(several, say)
    train_rows, test_rows = len(digits.train_rows), len(digits.test_rows)
    say(f"Data: {digits.source}, {train_rows:,} training and {test_rows:,} test images.")
    if several is None:
        fit = fitting.fit(spec, digits, frameworks.strategy(gpus), say, log)
    else:
        several.require_same("data", [digits.train_rows, digits.train_classes])
        own_log = log if several.rank == 0 else lambda *_: None
        fit = fitting.fit(spec, digits, several.strategy, say, own_log, several)
        same = several.require_same("weights", fit.model.get_weights())
        say(f"All {several.count} workers have the same weights: {same:08x}.")
    say(f"Kept epoch {fit.best_epoch} after {fit.fit_s:.1f} s.")
    if several is not None and several.rank > 0:
        several.wait()
        say("Worker 0 has written the outputs.")
        return None
    with replacing(spec.output) as folder:
        exporting = time.perf_counter()
        agreed = _export(fit, digits, folder)
        exports.require(agreed)
        metrics = _metrics(spec, digits, gpus, fit, agreed)
        if run_id:
            metrics["run"] = run_id
        metrics["durations_s"]["export"] = round(time.perf_counter() - exporting, 3)
        _write_reports(metrics, fit, digits, folder)
    for name in ("accuracy", "loss"):
        log(f"test_{name}", metrics[name], None)
    say(
        f"SavedModel and ONNX agree on {test_rows:,} test images: largest difference of logits "
        f"{agreed.onnx.largest:.2g} (TensorFlow 1 checkpoint {agreed.checkpoint.largest:.2g})."
    )
    if several is not None:
        several.wait()
    say(f"Test accuracy {metrics['accuracy']:.2%}, loss {metrics['loss']:.4f}. Run folder: {spec.output}")
    return TrainingResult(
        folder=spec.output,
        source=digits.source,
        epochs=metrics["epochs"],
        accuracy=metrics["accuracy"],
        loss=metrics["loss"],
        largest_logits_difference=agreed.onnx.largest,
        fit_s=fit.fit_s,
    )


def _load_in_turn(several: Workers | None, say: Callable[[str], None]) -> Digits:
    """Load the digits; of several workers, the first one downloads them for those that share its machine."""
    if several is not None and several.rank > 0:
        several.wait()
    digits = load_digits(None, say)
    if several is not None and several.rank == 0:
        several.wait()
    return digits


def _export(fit: Fit, digits: Digits, folder: Path) -> Agreement:
    """Write the three models and the entry script into `folder`, and compare the models."""
    from stoker_training import exports

    exports.write_saved_model(fit.model, folder / "saved_model")
    exports.write_onnx(fit.model, folder / "model.onnx")
    exports.write_checkpoint(fit.model, folder / exports.CHECKPOINT)
    shutil.copyfile(ENTRY_SCRIPT, folder / "score.py")
    return exports.measure(
        folder / "saved_model", folder / "model.onnx", folder / exports.CHECKPOINT, digits.test_rows
    )


def _metrics(
    spec: TrainingSpec, digits: Digits, gpus: list[str], fit: Fit, agreed: Agreement
) -> dict[str, Any]:
    """Return the facts of a run folder; accuracy and loss are those of the written SavedModel."""
    predicted = agreed.logits.argmax(axis=1)
    return {
        "written_by": WRITTEN_BY,
        "dataset": digits.source,
        "network": spec.network,
        "parameters": fit.model.count_params(),
        "seed": spec.seed,
        "accuracy": float(np.mean(predicted == digits.test_classes)),
        "loss": mean_cross_entropy(agreed.logits, digits.test_classes),
        "confusion_matrix": confusion_matrix(digits.test_classes, predicted),
        "rows": {
            "training": fit.train_rows,
            "validation": fit.validation_rows,
            "test": len(digits.test_rows),
        },
        "epochs": len(fit.history["loss"]),
        "best_epoch": fit.best_epoch,
        "batch_rows": fit.batch_rows,
        "agreement_with_saved_model": {
            "onnx_largest_logits_difference": agreed.onnx.largest,
            "onnx_classes_differ": agreed.onnx.classes_differ,
            "tf1_checkpoint_largest_logits_difference": agreed.checkpoint.largest,
            "tf1_checkpoint_classes_differ": agreed.checkpoint.classes_differ,
        },
        "durations_s": {"fit": round(fit.fit_s, 3)},
        "devices": gpus or ["CPU"],
        "versions": library_versions(),
    }


def _write_reports(metrics: dict[str, Any], fit: Fit, digits: Digits, folder: Path) -> None:
    write_history(fit, folder)
    write_sample(digits, folder / "sample_input.json")
    write_json(metrics, folder / METRICS)
