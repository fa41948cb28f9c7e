"""The training module: trains a digit classifier and writes a run folder that Stoker registers and serves."""

from stoker_training.spec import NETWORKS, Network, TrainingResult, TrainingSpec
from stoker_training.training import train

__all__ = ["NETWORKS", "Network", "TrainingResult", "TrainingSpec", "train"]
