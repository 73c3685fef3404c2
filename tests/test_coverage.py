"""What a run's default inputs touch, and what it says of the rest."""

import pytest
import torch

import llamapar as lp
from llamapar import Layout
from llamapar.execution.body import inputs, uncut
from llamapar.execution.execute import prepare
from llamapar.execution.run_options import RunOptions
from llamapar.programs import parts, vocab
from llamapar.programs.corpus import CORPUS, token_ids

pytestmark = pytest.mark.usefixtures("no_ranks_left")


@pytest.mark.parametrize("tp", [1, 2, 3, 8])
@pytest.mark.parametrize("padding", ["none", "128*tp"])
def test_every_sequence_has_both_edges_of_every_shard(tp, padding):
    options = RunOptions(Layout(tp=tp, dp=2), padding=padding, global_batch=4, force=True)
    task, _, _ = prepare("loss", "tiny", options)
    drawn = inputs(task, uncut)["targets"]
    edges = {row for own in task.setting.vocab.ranks if len(own.real) for row in (own.real[0], own.real[-1])}
    assert len(edges) >= 2 * tp - 1
    for sequence in drawn.tolist():
        assert edges <= set(sequence)
    assert lp.run("loss", "tiny", Layout(tp=tp), padding=padding, force=True).untouched == ()


def test_a_sequence_too_short_for_all_edges_leaves_them_to_the_next():
    task, _, _ = prepare("embedding", "tiny", RunOptions(Layout(tp=8), seq_len=8, global_batch=2))
    drawn = inputs(task, uncut)["tokens"]
    assert {*drawn.flatten().tolist()} == {row for rank in range(8) for row in (128 * rank, 128 * rank + 127)}


@pytest.mark.parametrize("edge", ["first", "last"])
def test_a_dropped_edge_row_is_noticed_on_every_seed(edge, monkeypatch, counts):
    """With random tokens alone, 11 of 12 seeds missed it."""
    right = parts.row_range

    def narrower(*given):
        first, past = right(*given)
        return (first + 1, past) if edge == "first" else (first, past - 1)

    monkeypatch.setattr(vocab, "row_range", narrower)
    for seed in range(counts(3, 12, 12)):
        assert not lp.run("embedding", "tiny", Layout(tp=4), seed=seed).ok


def test_an_embedding_that_only_rank_0_looks_up_is_noticed_in_a_step(monkeypatch):
    """Bytes of ASCII were all rows of rank 0."""
    right = vocab.embedding

    def on_rank_0(mesh, setting, tokens, tok_embeddings):
        first, _ = parts.row_range(mesh, setting, tokens.device)
        return right(mesh, setting, tokens, tok_embeddings * (first == 0))

    monkeypatch.setattr("llamapar.programs.llama.embedding", on_rank_0)
    result = lp.run("step", "tiny", Layout(tp=8), dtype="float64", micro_batches=2)
    assert not result.errors
    assert not result.ok


def test_a_character_is_one_row_in_every_layout():
    for size in (5, 50, 1024, 128256):
        ids = token_ids(size)
        assert set(ids) == set(CORPUS)
        assert set(ids.values()) <= set(range(size))
        assert len(set(ids.values())) == min(size, len(ids))


def test_a_norm_without_eps_is_noticed_in_single_precision(monkeypatch):
    right = parts.rms_norm
    monkeypatch.setattr("llamapar.programs.llama.rms_norm", lambda x, weight, eps: right(x, weight, 0.0))
    assert not lp.run("block", "tiny", Layout(tp=2), dtype="float32").ok


def test_what_the_inputs_never_touched_is_said():
    zeros = {"tokens": torch.zeros(2, 64, dtype=torch.int64)}
    result = lp.run("embedding", "tiny", Layout(tp=8), inputs=zeros)
    assert result.ok
    assert result.untouched == (
        "no vocabulary row of TP ranks 1–7 was looked up",
        "the first or last vocabulary row of TP rank 0 was never looked up",
    )
    assert "not exercised: no vocabulary row of TP ranks 1–7 was looked up" in str(result).splitlines()
    assert result.as_dict()["untouched"] == list(result.untouched)


@pytest.mark.parametrize(
    ("documents", "said"),
    [((32, 32), ("no document crosses the edge of a CP rank's chunk",)), ((40, 24), ()), (None, ())],
)
def test_documents_that_end_where_chunks_do(documents, said):
    found = lp.run("attention", "tiny", Layout(cp=2), documents=documents, chunking="contiguous")
    assert found.ok
    assert found.untouched == said
