"""Undecorated entry scripts in Azure's form, for the models of `stoker train mnist`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["GRAPH_SCORE", "ONNX_SCORE"]

GRAPH_SCORE = Path(__file__).with_name("graph_score.py")
"""TensorFlow 1: the form of the script in Azure's how-to for GPU inference."""

ONNX_SCORE = Path(__file__).with_name("onnx_score.py")
"""ONNX Runtime."""
