"""Incident 2 (hpcaitech/ColossalAI #6108): Llama 3.1 70B at TP 8, its embedding saved as [16064, 8192].

Reproduced on ranks that hold padded shards, seen by headers, refused, put right, and proved byte for byte.
The vocabulary is the true one; the rest of the model is narrow.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import llamapar as lp
from llamapar.checkpoint import CheckpointError
from llamapar.cli import main as cli
from llamapar.describe.modelfile import config_json
from llamapar.programs.saving import gather_then_unpad, unpad_then_gather

pytestmark = pytest.mark.usefixtures("no_ranks_left")
BIG = lp.model("llama3.1-70b")
MODEL = BIG.replace(dim=16, n_heads=16, head_dim=2, ffn_dim=48, n_layers=2)
DEFAULT = lp.Padding(64, per_tp=True)
EMBEDDING = "model.embed_tokens.weight"
FOUND = (
    f"{EMBEDDING} is [16064, 16] in pytorch_model.bin, [128256, 16] is needed: it is one of 8 shards of a "
    "vocabulary padded to 128512 = 64·8·251, not the whole embedding"
)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    return {p.hf_name: torch.randn(p.shape, generator=random).bfloat16() for p in MODEL.parameters()}


@pytest.fixture
def trained(tmp_path: Path, weights: dict[str, Tensor]) -> Path:
    return save(tmp_path / "trained", weights)


def save(folder: Path, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config_json(MODEL)))
    return folder


def saved(
    program: object, weights: dict[str, Tensor], tp: int, rule: lp.Padding = DEFAULT, **options: Any
) -> list[Tensor]:
    """What every rank would write, by rank."""
    run = lp.run(
        program,
        MODEL,
        {"tp": tp},
        padding=rule,
        kv_replication=tp > MODEL.n_kv_heads,
        dtype="bfloat16",
        inputs={"tok_embeddings": weights[EMBEDDING]},
        backward=False,
        device="cpu",
        **options,
    )
    assert run.errors == {}
    assert list(run.outputs) == list(range(tp))
    return [run.outputs[rank]["saved"] for rank in range(tp)]


# -- reproduce it --------------------------------------------------------------------------------


def test_at_70bs_true_size() -> None:
    last = {}
    for program in (unpad_then_gather, gather_then_unpad):
        tape = lp.tape(program, "llama3.1-70b", {"tp": 8}, padding=DEFAULT)
        assert tape.errors == {}
        last[program] = set(tape.steps[-1].local.values())
    assert last == {unpad_then_gather: {(16064, 8192)}, gather_then_unpad: {(128256, 8192)}}


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=pytest.mark.soak)])
def test_each_rank_writes_its_own_shard_and_the_right_order_every_row(
    weights: dict[str, Tensor], engine: str
) -> None:
    written = saved(unpad_then_gather, weights, 8, engine=engine)
    assert {tuple(t.shape) for t in written} == {(16064, 16)}
    padded = torch.cat([weights[EMBEDDING], torch.zeros(256, 16, dtype=torch.bfloat16)])
    assert torch.cat(written).equal(padded)  # pads and all; the 256 dead rows are rank 7's
    assert not written[7][-256:].any()
    for whole in saved(gather_then_unpad, weights, 8, engine=engine):
        assert whole.equal(weights[EMBEDDING])


@pytest.mark.parametrize(
    ("tp", "multiple", "pads", "rows"),
    [(4, 64, 0, 128256), (8, 32, 0, 128256), (16, 32, 256, 8032)],
)
def test_the_wrong_order_goes_unnoticed_where_nothing_is_padded(
    weights: dict[str, Tensor], tp: int, multiple: int, pads: int, rows: int
) -> None:
    rule = lp.Padding(multiple, per_tp=True)
    assert rule.padded(128256, tp) - 128256 == pads
    wrong = saved(unpad_then_gather, weights, tp, rule)[0]
    right = saved(gather_then_unpad, weights, tp, rule)[0]
    assert right.equal(weights[EMBEDDING])
    assert len(wrong) == rows
    assert wrong.equal(right) == (pads == 0)


# -- see it, and let nothing be made of it -----------------------------------------------------------


@pytest.fixture
def wrong(tmp_path: Path, weights: dict[str, Tensor]) -> Path:
    """The folder that the wrong order wrote: rank 0 writes, as in the incident."""
    rank0 = saved(unpad_then_gather, weights, 8)[0]
    return save(tmp_path / "wrong", weights | {EMBEDDING: rank0})


def test_inspect_says_what_it_is(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = lp.checkpoint.inspect(wrong)
    assert not found.ok
    assert found.findings == (FOUND,)
    assert cli.main(["checkpoint", "inspect", str(wrong)]) == 1
    assert FOUND in capsys.readouterr().out


def test_how_it_shows_itself_in_a_notebook(wrong: Path, trained: Path) -> None:
    page = lp.checkpoint.inspect(wrong)._repr_html_()
    assert page.startswith("<p><b>wrong: torch, whole; 21 tensors, ")
    assert page.endswith(f"</table><p>{FOUND}</p>")
    assert '<td style="text-align:left">[16064, 16]</td>' in page
    assert repr(lp.checkpoint.opened(trained)) == f"{trained}: torch, 1 file, 21 tensors, 8,223,904 bytes"
    faults = lp.checkpoint.Verification(Path("many"), (), tuple(f"<{i}>" for i in range(40)))
    assert str(faults).splitlines()[2:] == [*(f"<{i}>" for i in range(32)), "… and 8 more"]
    assert "<p>&lt;0&gt;<br>&lt;1&gt;<br>" in faults._repr_html_()
    assert faults.as_dict()["problems"][-1] == "<39>"


def test_everything_refuses_it(wrong: Path, trained: Path, tmp_path: Path) -> None:
    before = (wrong / "pytorch_model.bin").read_bytes()
    for make in (lp.checkpoint.gather, lp.checkpoint.shard, lp.checkpoint.reshard):
        with pytest.raises(CheckpointError, match="does not agree with its config: ") as refused:
            make(wrong, tmp_path / "new")
        assert str(refused.value) == (
            f"{wrong} does not agree with its config: {FOUND}\n"
            "  try  the config of the model that was saved, or llamapar checkpoint inspect"
        )
    checked = lp.checkpoint.verify(wrong)
    assert checked.problems == (FOUND,)
    assert not lp.checkpoint.verify(wrong, against=trained).ok
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is \[16064, 16\]"):
        lp.checkpoint.verify(trained, against=wrong)
    assert sorted(os.listdir(tmp_path)) == ["trained", "wrong"]
    assert (wrong / "pytorch_model.bin").read_bytes() == before


# -- put it right, and prove it ----------------------------------------------------------------------


def test_the_right_order_is_proved_by_shape_and_every_byte(
    trained: Path, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    whole = saved(gather_then_unpad, weights, 8)[0]
    right = save(tmp_path / "right", weights | {EMBEDDING: whole})
    assert lp.checkpoint.inspect(right).ok
    proved = lp.checkpoint.verify(right, against=trained)
    assert proved.ok
    everything = sum(t.nbytes for t in weights.values())
    assert proved.checks[-1] == (f"parameters like {trained}'s", len(weights), everything)
    whole.view(torch.uint8)[16063, 5] ^= 1
    off = save(tmp_path / "off", weights | {EMBEDDING: whole})
    assert lp.checkpoint.inspect(off).ok
    told = lp.checkpoint.verify(off, against=trained).problems
    assert told == (f"pytorch_model.bin: {EMBEDDING} differs from row 16063 on",)


def test_shards_joined_in_another_order_have_the_right_shape(
    trained: Path, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    shards = saved(unpad_then_gather, weights, 8)
    for name, order in {"ranks": range(8), "swapped": (1, 0, *range(2, 8))}.items():
        joined = torch.cat([shards[rank] for rank in order])[:128256]
        folder = save(tmp_path / name, weights | {EMBEDDING: joined})
        assert lp.checkpoint.inspect(folder).ok
        assert lp.checkpoint.verify(folder, against=trained).ok == (name == "ranks")


def test_the_optimizers_message_is_the_same_padding() -> None:
    message = lp.check(BIG, {"tp": 8}, framework="colossalai").findings[0].frameworks["colossalai"].message
    assert "[128256, 8192]" in message
    assert "[16064, 8192]" in message
    assert 16064 * 8 == DEFAULT.padded(128256, 8) == 128512 != 128256
    cause = lp.explain(message, model=BIG, tp=8).best
    assert cause is not None
    assert cause.cause == "128256 rows are padded to 128512 before they are cut over 8 ranks"
    assert cause.equations == ("16064·8 = 128512 = 128256 + 256 pad rows",)
    assert lp.check(BIG, {"tp": 4}, framework="colossalai").ok


# -- from one TP to another --------------------------------------------------------------------------

ROWS = {4: 32064, 8: 16064, 16: 8064}
"""TP → rows of a rank under the default: 128256, 128512 and 129024 in all."""


def cut(source: Path, target: Path, tp: int, rule: lp.Padding = DEFAULT) -> None:
    lp.checkpoint.reshard(source, target, tp=tp, padding=rule, kv_replication=tp > MODEL.n_kv_heads)


def stored(folder: Path, tp: int) -> list[Tensor]:
    return [load_file(folder / f"tp{rank:02d}-pp00.safetensors")[EMBEDDING] for rank in range(tp)]


def test_what_a_rank_stores(trained: Path, weights: dict[str, Tensor], tmp_path: Path) -> None:
    for tp, rows in ROWS.items():
        cut(trained, tmp_path / f"tp{tp}", tp)
        shards = stored(tmp_path / f"tp{tp}", tp)
        assert {tuple(t.shape) for t in shards} == {(rows, 16)}
        assert torch.cat(shards)[:128256].equal(weights[EMBEDDING])
        assert not torch.cat(shards)[128256:].any()
    ranks = saved(unpad_then_gather, weights, 8)  # what the ranks hold is what is stored for them
    assert all(own.equal(stored) for own, stored in zip(ranks, stored(tmp_path / "tp8", 8), strict=True))
    cut(tmp_path / "tp8", tmp_path / "mended", 8, lp.Padding(32, per_tp=True))
    assert {tuple(t.shape) for t in stored(tmp_path / "mended", 8)} == {(16032, 16)}
    assert lp.checkpoint.verify(tmp_path / "mended", against=trained).ok


def test_the_page_on_checkpoints(
    trained: Path,
    wrong: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong.rename(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parent.parent / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```shell-session\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^\$ llamapar (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert len(commands) == 3
    for command, output in commands:
        status = cli.main(shlex.split(command))
        out, err = capsys.readouterr()
        assert err + out == output
        assert status == ("is needed" in output)
