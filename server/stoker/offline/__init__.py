"""Scoring without a server: in this process, with the answers that a server gives.

from stoker.offline import Predictor

classes = Predictor("mnist:3")(images)
"""

from stoker.offline.predictor import Predictor

__all__ = ["Predictor"]
