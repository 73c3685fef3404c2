"""The integer maps: who holds which heads, rows, tokens, layers and shards, and in which order stages run.

Each map is a record with a text form and an HTML form. None of it needs torch or a process group; bytes are
counted in `count`.
"""

from .ffn_map import FfnMap, ffn
from .head_map import HeadMap, TradeMap, heads
from .rank_grid import RankGrid, ranks
from .sequence_map import SequenceMap, sequence
from .stage_map import StageMap, stages
from .vocab_map import VocabMap, vocab

__all__ = [
    "FfnMap",
    "HeadMap",
    "RankGrid",
    "SequenceMap",
    "StageMap",
    "TradeMap",
    "VocabMap",
    "ffn",
    "heads",
    "ranks",
    "sequence",
    "stages",
    "vocab",
]
