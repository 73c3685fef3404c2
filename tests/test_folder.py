"""A folder of settings, judged file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import llamapar as lp
import repositories
from llamapar.configs.folder import judge_folder
from llamapar.describe.modelfile import as_hf

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[parallelism]
tensor_parallel_degree = {tp}
[training]
seq_len = 8192
"""
REGISTRY = """
from torchtitan.trainer import Trainer
from .base import shared, unrelated

def small() -> Trainer.Config:
    config = shared()
    config.parallelism.tensor_parallel_degree = 16
    return config

def _helper() -> Trainer.Config:
    return shared()

def with_arguments(tp) -> Trainer.Config:
    return shared()
"""
BASE = """
def shared() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        hf_assets_path="./assets/hf/Llama-3.1-8B",
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=8192, max_context_length=8192),
    )
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {
        "good.toml": TITAN.format(tp=8),
        "sub/bad.toml": TITAN.format(tp=16),
        "sub/broken.toml": "[model\n",
        "registry/runs.py": REGISTRY,
        "registry/base.py": BASE,
        "other.json": "[1, 2]",
        "prose.py": "import torchtitan\nprint(1)\n",
        "verl.sh": "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=x\n",
        ".hidden/bad.toml": TITAN.format(tp=16),
        "venv/pyvenv.cfg": "",
        "venv/bad.toml": TITAN.format(tp=16),
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link.toml").symlink_to(tmp_path / "sub" / "bad.toml")
    return tmp_path


def test_every_file_of_settings_is_judged_by_itself(folder: Path) -> None:
    found = judge_folder(folder, gpus=64)
    rows = {row.file: (row.trainer, row.verdict) for row in found.files}
    assert rows == {
        "registry/runs.py:small": ("torchtitan's registry", "error"),
        "sub/bad.toml": ("torchtitan", "error"),
        "sub/broken.toml": ("", "refused"),
        "verl.sh": ("verl", "refused"),
        "good.toml": ("torchtitan", "ok"),
        "registry/base.py:shared": ("torchtitan's registry", "ok"),
    }
    assert [row.verdict for row in found.files] == ["error", "error", "refused", "refused", "ok", "ok"]
    assert (found.ok, found.others, found.counts["error"]) == (False, 2, 2)
    whats = {row.file: row.what for row in found.files}
    assert whats["sub/bad.toml"] == "LP104 tp=16 does not divide n_kv_heads=8 (llama3-8b)"
    assert whats["verl.sh"] == "verl.sh: settings of verl, which are not read"
    assert "2 other files of these kinds: no settings" in str(found)


def test_what_is_certain_without_gpus_is_an_error_too(folder: Path) -> None:
    rows = {row.file: (row.verdict, row.what) for row in judge_folder(folder).files}
    assert rows["sub/bad.toml"] == ("error", "LP104 tp=16 does not divide n_kv_heads=8 (llama3-8b)")
    assert rows["good.toml"] == ("in part", "needs gpus, global_batch")


def test_the_command_judges_a_folder(folder: Path, run: Any) -> None:
    status, out, _ = run(["check", str(folder), "--gpus", "64", "--json"])
    assert (status, json.loads(out)) == (1, {"schema": 1, **judge_folder(folder, gpus=64).as_dict()})
    (folder / "sub" / "bad.toml").unlink()
    (folder / "registry" / "runs.py").unlink()
    status, out, _ = run(["check", str(folder), "--gpus", "64"])
    assert status == 0
    assert out.startswith(f"{folder}: 4 sets of settings: 2 refused, 2 ok\n")


def test_a_folder_with_a_config_json_is_a_model(tmp_path: Path, run: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(as_hf(lp.model("llama3-8b"))))
    status, out, _ = run(["check", str(tmp_path), "--tp", "8"])
    assert (status, "sets of settings" in out) == (0, False)


def test_an_empty_folder_has_nothing_wrong(tmp_path: Path) -> None:
    assert judge_folder(tmp_path).ok
    with pytest.raises(lp.LlamaparError, match="nowhere' is no folder"):
        judge_folder(tmp_path / "nowhere")


def test_nothing_in_the_trainers_repositories_is_taken_for_anothers() -> None:
    held = repositories.held()
    files = [(one["repository"], *file) for one in held for file in one["files"]]
    assert len(held) == len(repositories.STARTS) == 16
    assert sum(one["others"] for one in held) + len(files) > 19_000
    assert len(files) > 3_900
    foreign = [file for file in files if repositories.is_foreign(file[0], file[3])]
    assert foreign == []
    assert [file for file in files if file[4] == "error"] == []
    assert repositories.is_foreign("huggingface/picotron", "nanotron")


def test_the_hook_runs_the_command() -> None:
    [hook] = yaml.safe_load((Path(__file__).parents[1] / ".pre-commit-hooks.yaml").read_text())
    assert (hook["entry"], hook["args"], hook["pass_filenames"]) == ("llamapar check", ["."], False)
