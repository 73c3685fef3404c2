"""The integer maps: who holds what, as records with a text form and an HTML form."""

from .ffn import FfnMap, ffn
from .heads import HeadMap, heads
from .ranks import RankGrid, ranks
from .sequence import SequenceMap, sequence
from .stages import StageMap, stages
from .vocab import VocabMap, vocab

__all__ = [
    "FfnMap",
    "HeadMap",
    "RankGrid",
    "SequenceMap",
    "StageMap",
    "VocabMap",
    "ffn",
    "heads",
    "ranks",
    "sequence",
    "stages",
    "vocab",
]
