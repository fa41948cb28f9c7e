"""Scoring without a server: in this process, with the answers that a server gives.

from stoker.offline import Predictor

classes = Predictor("mnist:3")(images)
"""

from stoker.offline.predictor import Predictor
from stoker.offline.spark import spark

__all__ = ["Predictor", "spark"]
