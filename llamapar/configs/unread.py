"""Trainers whose settings are recognised and refused by name, because nothing here reads them.

Without these rows a launch of one of them is taken for the settings of another trainer that it starts:
vLLM for the rollouts of verl and NeMo-RL, Megatron-LM and the Trainer for the arguments of ms-swift.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llamapar.errors import LlamaparError

from .draft import Draft
from .files import Files


@dataclass(frozen=True)
class UnreadTrainer:
    """A trainer without a reader. command: a pattern of its commands; keys: one of them is in its files."""

    name: str
    command: str
    keys: tuple[str, ...]

    def recognised(self, files: Files) -> bool:
        """Whether a command starts the trainer, or a file of settings is for it."""
        if self.keys and files.with_key(*self.keys) is not None:
            return True
        return any(re.search(self.command, command) for command in files.command_lines())

    def refuse(self, files: Files, draft: Draft) -> None:
        """Raise the LlamaparError that names the trainer."""
        name = next(iter(files.texts))
        why = "no reader: its files name what it trains in ways that nothing here follows"
        choose = ["the layout by --tp, --cp, --pp and --dp"]
        raise LlamaparError(f"{name}: settings of {self.name}, which are not read", why, choose, "config")


UNREAD_TRAINERS = (
    # volcengine/verl verl/trainer/main_ppo.py and verl/trainer/config @b178a3cd5.
    UnreadTrainer("verl", r"\bverl\.|\bactor_rollout_ref\.", ("actor_rollout_ref",)),
    # NVIDIA-NeMo/RL examples/run_*.py and examples/configs @7ea279abf.
    UnreadTrainer(
        "NeMo-RL",
        r"\bnemo_rl\b|examples/(?:nemo_gym/)?run_\w+\.py\b|\bpolicy\.(?:model_name|generation|\w+_cfg)\b",
        ("policy.dtensor_cfg", "policy.megatron_cfg", "policy.generation", "grpo"),
    ),
    # modelscope/ms-swift swift/cli/main.py and swift/cli/_megatron/main.py @3602360a5.
    UnreadTrainer(
        "ms-swift",
        r"(?:^| )(?:swift|megatron) (?:sft|pt|rlhf|grpo|infer|deploy|eval|export|app|sample|rollout|web-ui)\b"
        r"|\bswift/cli/|\bswift\.cli\b",
        (),
    ),
    # OpenRLHF/OpenRLHF openrlhf/cli @3c3be623.
    UnreadTrainer("OpenRLHF", r"\bopenrlhf\.", ()),
    # Lightning-AI/litgpt litgpt/pretrain.py and config_hub @26857050.
    UnreadTrainer(
        "LitGPT", r"(?:^| )litgpt (?:pretrain|finetune)", ("train.lr_warmup_steps", "train.max_seq_length")
    ),
)
