"""Checkpoints cut, gathered and cut again: bit for bit, and as torch and transformers read them."""

import itertools
import json
import random
import shutil
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint import format_utils
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as TorchShard

import llamapar as lp
from inputs import oracle
from llamapar import FRAMEWORKS, PRESETS, checkpoint
from llamapar.checkpoint import CheckpointError, atomic_write
from llamapar.checkpoint.sharding import reordered
from llamapar.describe.modelfile import config_json
from llamapar.describe.splits import LAYER_SPLITS, Padding
from weights import (
    DTYPES,
    alike,
    contents,
    counted,
    exactly,
    load,
    loaded,
    permuted,
    raw,
    save_hf,
    save_meta,
    small,
    tiny,
    together,
    values,
)

pytestmark = pytest.mark.usefixtures("no_ranks_left")
Whole = Callable[..., Path]
Counts = Callable[[int, int, int], int]
PADDINGS = list(dict.fromkeys(f.padding for f in FRAMEWORKS.values()))
DEGREES = range(1, 17)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Hundreds of small files: what they hold is looked at here, test_checkpoint_faults.py has the disk."""
    monkeypatch.setattr(atomic_write, "_sync", lambda path: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a whole checkpoint of a model and dtype, made once."""
    made = {}

    def folder(model, dtype="BF16"):
        if (model, dtype) not in made:
            path = tmp_path_factory.mktemp("whole") / "it"
            made[model, dtype] = save_hf(path, model, values(model, DTYPES[dtype]))
        return made[model, dtype]

    return folder


# -- what a rank must hold, computed the long way ----------------------------------------------------


def of_ranks(model, whole, p, tp, padding):
    """Each rank's part of a whole tensor, by torch.chunk after padding and repeating."""
    if p.key in ("tok_embeddings", "output"):
        pads = padding.padded(len(whole), tp) - len(whole)
        raw_pads = torch.zeros(pads, *whole.shape[1:], dtype=torch.float32).to(whole.dtype)
        whole = torch.cat([whole.view(torch.uint8), raw_pads.view(torch.uint8)]).view(whole.dtype)
    if p.key in ("wk", "wv", "bk", "bv") and tp > model.n_kv_heads:
        heads = whole.view(torch.uint8).reshape(model.n_kv_heads, -1)
        repeated = heads.repeat_interleave(tp // model.n_kv_heads, 0)
        repeated = repeated.reshape(-1, *whole.view(torch.uint8).shape[1:])
        whole = repeated.view(whole.dtype)
    if p.key in ("norm", "bo"):
        return [whole] * tp
    dim = 1 if p.key in ("wo", "w2") else 0
    parts = torch.chunk(whole, tp, dim)
    return [*parts, *[whole.narrow(dim, 0, 0)] * (tp - len(parts))]


def in_meta_order(model, p, tensor):
    """A whole tensor of Hugging Face's with its rows as Meta has them."""
    heads = {"wq": model.n_heads, "bq": model.n_heads, "wk": model.n_kv_heads, "bk": model.n_kv_heads}
    if p.key not in heads:
        return tensor
    places = permuted(torch.arange(len(tensor)), heads[p.key])
    back = torch.empty_like(places)
    back[places] = torch.arange(len(tensor))
    return tensor.view(torch.uint8).reshape(len(tensor), -1)[back].view(tensor.dtype).reshape(tensor.shape)


def expected(model, dtype, tp, pp, padding, naming):
    """File → name → what must be in it."""
    whole = values(model, DTYPES[dtype])
    counts = lp.stages(model, lp.Layout(pp=pp)).counts
    first = list(itertools.accumulate([0, *counts]))
    parts = {
        p.name: of_ranks(model, in_meta_order(model, p, t) if naming == "meta" else t, p, tp, padding)
        for p, t in zip(model.parameters(), whole.values(), strict=True)
    }
    files = {}
    for stage, rank in itertools.product(range(pp), range(tp)):
        held = {}
        for p in model.parameters():
            ends = {"tok_embeddings": 0, "output": pp - 1, "norm": pp - 1}
            home = ends[p.key] if p.layer is None else next(s for s in range(pp) if p.layer < first[s + 1])
            last = p.key == "tok_embeddings" and stage == pp - 1
            shared = model.tied and last and (pp > 1 or naming == "meta")
            if stage not in ({home, pp - 1} if shared else {home}):
                continue
            part = parts[p.name][rank]
            if stage == home:
                held[p.name if naming == "meta" else p.hf_name] = part
            if shared:
                held["output.weight" if naming == "meta" else "lm_head.weight"] = part
        if naming == "meta":
            files[f"consolidated.{rank:02d}.pth"] = held
        else:
            files["model.safetensors" if tp * pp == 1 else f"tp{rank:02d}-pp{stage:02d}.safetensors"] = held
    return files


# -- round trips -------------------------------------------------------------------------------------

Case = tuple[str, int, int, Padding, str]


def cases():
    """(preset, tp, pp, padding, format) of all that can be laid out, KV heads in copies where needed."""
    every = itertools.product(PRESETS, DEGREES, range(1, 5), PADDINGS, ("hf", "meta"))
    for name, tp, pp, padding, form in every:
        model = PRESETS[name]
        fits = model.n_heads % tp == 0 and (model.n_kv_heads % tp == 0 or tp % model.n_kv_heads == 0)
        if fits and not (form == "meta" and (pp > 1 or model.qkv_bias)):
            yield name, tp, pp, padding, form


CASES = list(cases())


def options(case):
    name, tp, pp, padding, form = case
    return dict(tp=tp, pp=pp, padding=padding, format=form, kv_replication=tp > PRESETS[name].n_kv_heads)


def test_what_is_cut_is_right_and_comes_back(whole, tmp_path, counts):
    chosen = random.Random(0).sample(CASES, counts(12, 30, len(CASES)))
    for i, case in enumerate(chosen):
        name, tp, pp, padding, form = case
        model, dtype = small(name), list(DTYPES)[zlib.crc32(repr(case).encode()) % len(DTYPES)]
        source = whole(model, dtype)
        cut, back = tmp_path / f"{i} cut", tmp_path / f"{i} back"
        made = checkpoint.shard(source, cut, **options(case))
        found = loaded(cut)
        want = expected(model, dtype, tp, pp, padding, form)
        assert found.keys() == want.keys(), case
        for file, tensors in want.items():
            assert alike(found[file], tensors), (case, file)
        assert {stored.dtype for stored in made.tensors} == {dtype}
        gathered = checkpoint.gather(cut, back, format="hf")
        assert alike(together(back), values(model, DTYPES[dtype])), case
        assert gathered.model == model.replace(name=gathered.model.name if gathered.model else "")
        shutil.rmtree(cut)
        shutil.rmtree(back)


def test_every_dtype_and_split_of_one_model(whole, tmp_path, counts):
    model = tiny(n_layers=5)
    every = list(itertools.product(DTYPES, LAYER_SPLITS, (1, 2, 4, 8), (1, 2, 4), PADDINGS))
    for i, (dtype, split, tp, pp, padding) in enumerate(random.Random(2).sample(every, counts(12, 30, 600))):
        if split == "equal":
            pp = 5 if pp > 1 else 1
        cut, back = tmp_path / f"{i} cut", tmp_path / f"{i} back"
        checkpoint.shard(
            whole(model, dtype), cut, tp=tp, pp=pp, padding=padding, kv_replication=tp == 8, layer_split=split
        )
        checkpoint.gather(cut, back)
        assert alike(together(back), values(model, DTYPES[dtype])), (dtype, split, tp, pp, padding)
        shutil.rmtree(cut)
        shutil.rmtree(back)


def test_a_reshard_is_the_shard_of_the_gather(whole, tmp_path, counts):
    by_model = {}
    for case in CASES:
        by_model.setdefault(case[0], []).append(case)
    shuffled = random.Random(1)
    pairs = [(a, shuffled.choice(by_model[a[0]])) for a in shuffled.sample(CASES, 600)]
    for i, (a, b) in enumerate(pairs[: counts(8, 24, 600)]):
        here = tmp_path / str(i)
        here.mkdir()
        checkpoint.shard(whole(small(a[0])), here / "a", **options(a))
        checkpoint.reshard(here / "a", here / "b", **options(b))
        checkpoint.shard(whole(small(a[0])), here / "direct", **options(b))
        assert contents(here / "b") == contents(here / "direct"), (a, b)  # manifest and config too
        assert checkpoint.verify(here / "b", against=here / "a").ok
        shutil.rmtree(here)


# -- KV heads ----------------------------------------------------------------------------------------


def test_kv_heads_stored_twice_and_once_again(whole, tmp_path):
    model = tiny()
    twice = checkpoint.gather(whole(model), tmp_path / "twice", n_kv_heads=8)
    assert twice.model
    assert twice.model.n_kv_heads == 8
    held = together(tmp_path / "twice")
    for name, tensor in values(model).items():
        wide = "k_proj" in name or "v_proj" in name
        want = tensor.view(4, 4, 32).repeat_interleave(2, 0).reshape(32, 32) if wide else tensor
        assert raw(held[name]) == raw(want), name
    assert json.loads((tmp_path / "twice" / "config.json").read_text())["num_key_value_heads"] == 8
    checkpoint.shard(tmp_path / "twice", tmp_path / "cut", tp=8, format="meta")
    checkpoint.gather(tmp_path / "cut", tmp_path / "once", n_kv_heads=4)
    assert alike(together(tmp_path / "once"), values(model))
    checkpoint.shard(whole(model), tmp_path / "copies", tp=8, kv_replication=True)
    for name, tensors in loaded(tmp_path / "copies").items():
        rank = int(name[2:4])
        same = load(tmp_path / "cut" / f"consolidated.{rank:02d}.pth")["layers.1.attention.wv.weight"]
        assert raw(tensors["model.layers.1.self_attn.v_proj.weight"]) == raw(same)


def tiled(model, folder, tp):
    """Shards of tp ranks whose KV heads are 0, 1, …, 0, 1, … where they must be 0, 0, 1, 1, …"""
    shards = []
    for rank in range(tp):
        held = {}
        for p in model.parameters():
            tensor = in_meta_order(model, p, values(model)[p.hf_name])
            if p.key in ("wk", "wv"):
                held[p.name] = tensor.chunk(model.n_kv_heads)[rank % model.n_kv_heads]
            else:
                held[p.name] = of_ranks(model, tensor, p, tp, Padding(64, True))[rank]
        shards.append(held)
    return save_meta(folder, model, shards)


TILED = """\
layers.0.attention.wk.weight: the copies in consolidated.00.pth and consolidated.01.pth differ
  why  ranks that replicate a tensor must hold the same bytes; a file is of another step or damaged, or KV \
heads lie as 0, 1, …, 0, 1, … and not as 0, 0, 1, 1, …"""


def test_heads_that_were_tiled_are_refused(tmp_path):
    model = tiny()
    source = tiled(model, tmp_path / "tiled", 8)
    assert checkpoint.inspect(source).ok  # every shape is right
    with pytest.raises(CheckpointError, match=exactly(TILED)):
        checkpoint.gather(source, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    found = checkpoint.verify(source)
    assert not found.ok
    assert len(found.problems) == 2 * model.n_layers  # wk and wv


def test_two_stored_heads_that_are_not_one(tmp_path):
    model = tiny()
    held = dict(values(model))
    name = "model.layers.1.self_attn.v_proj.weight"
    source = save_hf(tmp_path / "it", model, held)
    with pytest.raises(CheckpointError, match=r"\Alayers\.0\.attention\.wk\.weight with 2 KV heads for 4: "):
        checkpoint.gather(source, tmp_path / "new", n_kv_heads=2)
    assert not (tmp_path / "new").exists()
    for n in held:  # all alike but one
        if "k_proj" in n or "v_proj" in n:
            held[n] = held[n].view(2, 2, 4, 32)[:, :1].expand(2, 2, 4, 32).reshape(16, 32).contiguous()
    held[name] = held[name].clone()
    held[name][7, 31] = 1.0
    source = save_hf(tmp_path / "other", model, held)
    told = (
        r"\Alayers\.1\.attention\.wv\.weight with 2 KV heads for 4: the copies of a head differ\n  why  ranks"
    )
    with pytest.raises(CheckpointError, match=told):
        checkpoint.gather(source, tmp_path / "other new", n_kv_heads=2)


# -- rows in Meta's order and in Hugging Face's -----------------------------------------------------


def meta_logits(model, w, tokens):
    """Meta's forward pass, rotary pairs as complex numbers (llama-models, models/llama3/model.py)."""

    def norm(x, name):
        return w[name] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.norm_eps)

    n, hd = tokens.shape[1], model.head_dim
    freqs = 1.0 / model.rope_theta ** (torch.arange(0, hd, 2).double() / hd)
    angles = torch.outer(torch.arange(n).double(), freqs)
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]

    def rotated(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], hd // 2, 2))
        return torch.view_as_real(pairs * turn).flatten(3)

    h = w["tok_embeddings.weight"][tokens]
    mask = torch.full((n, n), float("-inf")).triu(1)
    for i in range(model.n_layers):
        at, ff = f"layers.{i}.attention.", f"layers.{i}.feed_forward."
        x = norm(h, f"layers.{i}.attention_norm.weight")
        q, k, v = ((x @ w[f"{at}w{c}.weight"].T).unflatten(-1, (-1, hd)) for c in "qkv")
        q, k = rotated(q), rotated(k)
        k, v = (t.repeat_interleave(model.group_size, 2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / hd**0.5 + mask
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
        h = h + mixed @ w[f"{at}wo.weight"].T
        x = norm(h, f"layers.{i}.ffn_norm.weight")
        gate = torch.nn.functional.silu(x @ w[f"{ff}w1.weight"].T)
        h = h + (gate * (x @ w[f"{ff}w3.weight"].T)) @ w[f"{ff}w2.weight"].T
    return norm(h, "norm.weight") @ w["output.weight"].T


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_and_metas_own_arithmetic_give_the_same_logits(tmp_path, tied):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = tiny(tied=tied, max_seq_len=64, dim=48)  # in heads 4 wide the way there is the way back
    config = config_json(model)
    ours = LlamaForCausalLM(LlamaConfig(**config)).double().eval()
    ours.save_pretrained(tmp_path / "theirs")
    tokens = torch.randint(0, model.vocab_size, (2, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = ours(tokens).logits
    checkpoint.shard(tmp_path / "theirs", tmp_path / "cut", tp=4, padding="colossalai", pp=2)
    checkpoint.reshard(tmp_path / "cut", tmp_path / "meta", tp=2, format="meta", padding="megatron")
    checkpoint.gather(tmp_path / "meta", tmp_path / "one", format="meta")
    checkpoint.gather(tmp_path / "meta", tmp_path / "back")
    again = LlamaForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float64).eval()
    assert alike(dict(again.state_dict()), dict(ours.state_dict()))
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, logits, rtol=1e-11, atol=1e-11)
    held = load(tmp_path / "one" / "consolidated.00.pth")
    torch.testing.assert_close(meta_logits(model, held, tokens), logits, rtol=0, atol=1e-6)  # float32 angles
    wrong = dict(held)
    for name in held:  # the check sees rows that are left in the other order
        if name.endswith(("wq.weight", "wk.weight")):
            wrong[name] = permuted(held[name], model.n_heads if "wq" in name else model.n_kv_heads)
    assert not torch.allclose(meta_logits(model, wrong, tokens), logits, rtol=1e-3)


# -- what others wrote -------------------------------------------------------------------------------


def test_an_embedding_cut_by_columns_as_metas_llama_2_has_it(tmp_path):
    model = small("llama2-7b")
    shards = []
    for rank in range(2):
        held = {
            p.name: of_ranks(model, in_meta_order(model, p, t), p, 2, Padding())[rank]
            for p, t in zip(model.parameters(), values(model).values(), strict=True)
        }
        held["tok_embeddings.weight"] = values(model)["model.embed_tokens.weight"].chunk(2, 1)[rank]
        held["rope.freqs"] = torch.ones(2)
        shards.append(held)
    source = save_meta(tmp_path / "meta", model, shards)
    found = checkpoint.inspect(source)
    assert found.ok
    assert "embedding cut by columns" in str(found)
    checkpoint.gather(source, tmp_path / "back")
    assert alike(together(tmp_path / "back"), values(model))


def test_a_folder_of_torch_distributed_checkpoint_becomes_a_file_by_torch(tmp_path):
    folder = tmp_path / "dcp"
    with warnings.catch_warnings():  # no process group is there
        warnings.simplefilter("ignore")
        dcp.save({"model": values(tiny()), "step": 17}, checkpoint_id=folder, no_dist=True)
    with pytest.raises(CheckpointError, match=r"torch\.distributed\.checkpoint") as refusal:
        checkpoint.inspect(folder, model=tiny())
    (convert,) = refusal.value.choices
    assert str(convert).split()[2:] == [format_utils.__name__, "dcp_to_torch", str(folder), "model.pt"]
    format_utils.dcp_to_torch_save(folder, tmp_path / "model.pt")
    assert checkpoint.inspect(tmp_path / "model.pt", model=tiny()).ok


def test_names_that_wrappers_put_before(whole, tmp_path):
    model = tiny()
    odd = {f"_orig_mod.module.{name}": tensor for name, tensor in values(model).items()}
    source = save_hf(tmp_path / "it", model, odd)
    checkpoint.gather(source, tmp_path / "back")
    assert alike(together(tmp_path / "back"), values(model))


@pytest.mark.parametrize("form", ["hf", "meta"])
@pytest.mark.parametrize("stored_twice", [False, True])
def test_tied_embeddings(tmp_path, form, stored_twice):
    model = small("llama3.2-1b")
    held = dict(values(model))
    if stored_twice:  # as older files have it
        held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
    source = save_hf(tmp_path / "it", model, held)
    checkpoint.reshard(source, tmp_path / "cut", tp=2, pp=1 if form == "meta" else 2, format=form)
    if form == "meta":
        tensors = load(tmp_path / "cut" / "consolidated.01.pth")
        head, embedding = tensors["output.weight"], tensors["tok_embeddings.weight"]
        assert head.untyped_storage().data_ptr() == embedding.untyped_storage().data_ptr()
    checkpoint.gather(tmp_path / "cut", tmp_path / "back")
    assert alike(together(tmp_path / "back"), values(model))
    assert json.loads((tmp_path / "back" / "config.json").read_text())["tie_word_embeddings"] is True


def test_dtypes_of_one_checkpoint_are_kept_apart(tmp_path):
    model = tiny(dim=24, n_heads=6, n_kv_heads=3, ffn_dim=9)
    kinds = {p.hf_name: "F32" if p.key == "norm" else "F8_E4M3" for p in model.parameters()}
    odd = {name: values(model, DTYPES[kind])[name] for name, kind in kinds.items()}
    source = save_hf(tmp_path / "it", model, odd)
    checkpoint.shard(source, tmp_path / "cut", tp=3, padding="64")
    checkpoint.reshard(tmp_path / "cut", tmp_path / "meta", tp=1, format="meta")
    checkpoint.gather(tmp_path / "meta", tmp_path / "back")
    assert alike(together(tmp_path / "back"), odd)


def test_pad_rows_of_a_source_never_reach_the_target(whole, tmp_path):
    """Somebody's trainer left numbers in its pad rows, and the target has more of them."""
    model, tp = tiny(), 2
    checkpoint.shard(whole(model), tmp_path / "theirs", tp=tp, padding="64", format="meta")
    (tmp_path / "theirs" / "llamapar.json").unlink()
    last = tmp_path / "theirs" / "consolidated.01.pth"
    tensors = load(last)
    for name in ("tok_embeddings.weight", "output.weight"):
        tensors[name][model.vocab_size - 64 :] = 7
    torch.save(tensors, last)
    checkpoint.reshard(tmp_path / "theirs", tmp_path / "ours", tp=tp, padding="megatron", format="meta")
    held = values(model)
    for name, whole_name in zip(tensors, held, strict=True):
        if name not in ("tok_embeddings.weight", "output.weight"):
            continue
        made = torch.cat([tensors[name] for tensors in loaded(tmp_path / "ours").values()])
        assert len(made) == 256
        assert not made[model.vocab_size :].any()
        assert raw(made[: model.vocab_size]) == raw(held[whole_name])


# -- what others read --------------------------------------------------------------------------------


def test_one_file_and_several_with_an_index(whole, tmp_path, monkeypatch):
    from transformers import LlamaForCausalLM

    model = tiny()
    checkpoint.gather(whole(model), tmp_path / "one")
    held = {p.name for p in (tmp_path / "one").iterdir()}
    assert held == {"config.json", "llamapar.json", "model.safetensors"}
    monkeypatch.setattr(checkpoint, "MAX_FILE", 8000)
    made = checkpoint.gather(whole(model), tmp_path / "several")
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)]
    assert len(files) > 2
    assert [file.name for file in made.files] == files
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in values(model).values()) == made.nbytes
    assert alike(together(tmp_path / "several"), values(model))
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "several" / file, "pt") as opened:
            assert raw(opened.get_tensor(name)) == raw(values(model)[name])
            assert opened.metadata() == {"format": "pt"}
    for folder in ("one", "several"):  # by transformers' own loader
        (tmp_path / folder / "llamapar.json").unlink()
        read = LlamaForCausalLM.from_pretrained(tmp_path / folder, dtype=torch.bfloat16)
        assert alike(dict(read.state_dict()), values(model))
        checkpoint.shard(tmp_path / folder, tmp_path / f"{folder} cut", tp=4)
    one, several = contents(tmp_path / "one cut"), contents(tmp_path / "several cut")
    for held in (one, several):
        del held["llamapar.json"]  # the model has its folder's name there
    assert one == several


def test_torch_loads_a_reshard_and_places_it_alike(whole, tmp_path):
    """`distribute_tensor` of the padded whole gives each rank the bytes that our file has for it."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    model, tp, padding = tiny(), 4, Padding(64, True)
    checkpoint.shard(whole(model), tmp_path / "first", tp=2, padding="megatron", pp=2)
    checkpoint.reshard(tmp_path / "first", tmp_path / "cut", tp=tp, padding=padding, format="meta")
    plan = {"wo": TorchShard(1), "w2": TorchShard(1), "norm": Replicate()}
    for rank in range(tp):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=tp)
        try:
            mesh = torch.distributed.init_device_mesh("cpu", (tp,))
            held = torch.load(tmp_path / "cut" / f"consolidated.{rank:02d}.pth", weights_only=True)
            for p in model.parameters():
                tensor = in_meta_order(model, p, values(model)[p.hf_name])
                if p.key in ("tok_embeddings", "output"):
                    pads = torch.zeros(padding.padded(101, tp) - 101, 32, dtype=tensor.dtype)
                    tensor = torch.cat([tensor, pads])
                placed = plan.get(p.key, TorchShard(0))
                theirs = distribute_tensor(tensor, mesh, [placed], src_data_rank=None)
                assert raw(theirs.to_local()) == raw(held[p.name]), (rank, p.name)
                again = DTensor.from_local(held[p.name], mesh, [placed], run_check=False)
                assert again.shape == tensor.shape
        finally:
            torch.distributed.destroy_process_group()


def test_fairscales_layers_hold_these_bytes(tmp_path):
    """oracles/make_fairscale_load.py loaded such files into fairscale's layers on real ranks."""
    cases = oracle("fairscale_load")
    assert len(cases) == 3
    for i, case in enumerate(cases):
        model, here = tiny(**case["model"]), tmp_path / str(i)
        whole = {p.name: counted(model)[p.hf_name] for p in model.parameters()}
        source = save_meta(here / "whole", model, [whole])
        checkpoint.shard(source, here / "first", tp=2, padding="megatron")
        wanted = {"tp": case["tp"], "padding": case["padding"]}
        wanted["kv_replication"] = case["tp"] > model.n_kv_heads
        checkpoint.reshard(here / "first", here / "cut", **wanted, format="meta")
        assert len(case["ranks"]) == case["tp"]
        for rank, crcs in enumerate(case["ranks"]):
            held = load(here / "cut" / f"consolidated.{rank:02d}.pth")
            assert {n: zlib.crc32(raw(t)) for n, t in held.items()} == crcs, (case["tp"], rank)


# -- configs -----------------------------------------------------------------------------------------


def test_a_config_is_kept_with_all_that_it_says(whole, tmp_path):
    model = tiny()
    source = save_hf(tmp_path / "it", model)
    theirs = config_json(model) | {"eos_token_id": [7, 8], "torch_dtype": "bfloat16", "added": {"by": "hand"}}
    (source / "config.json").write_text(json.dumps(theirs))
    checkpoint.shard(source, tmp_path / "cut", tp=2)
    checkpoint.gather(tmp_path / "cut", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == theirs
    checkpoint.gather(tmp_path / "cut", tmp_path / "wide", n_kv_heads=8)
    assert json.loads((tmp_path / "wide" / "config.json").read_text()) == theirs | {"num_key_value_heads": 8}


def test_qk_norms_are_copied_to_every_rank_and_back(tmp_path):
    """Norms over each head: a rank holds them whole. In Meta's order their pairs stand as in wq."""
    model = tiny(qk_norm=True)
    source = save_hf(tmp_path / "it", model)
    cut = checkpoint.shard(source, tmp_path / "cut", tp=2)
    back = checkpoint.gather(cut.path, tmp_path / "back").path
    assert json.loads((back / "config.json").read_text()) == config_json(model)
    assert config_json(model)["model_type"] == "qwen3"
    theirs, mine = (load_file(folder / "model.safetensors") for folder in (source, back))
    assert theirs.keys() == mine.keys()
    assert all(theirs[name].view(torch.uint8).equal(mine[name].view(torch.uint8)) for name in theirs)
    norm, wq = (next(p for p in model.parameters() if p.key == key) for key in ("q_norm", "wq"))
    index = reordered(model, norm, "hf", "meta")
    assert index is not None
    assert index.tolist() == [0, 2, 1, 3]
    rows = reordered(model, wq, "hf", "meta")
    assert rows is not None
    assert rows[:4].tolist() == index.tolist()


def test_a_config_that_is_not_this_models_is_not_kept(whole, tmp_path):
    model = tiny()
    source = save_hf(tmp_path / "it", model)
    for other in ({"model_type": "bloom"}, config_json(model.replace(n_layers=9))):
        (source / "config.json").write_text(json.dumps(other))
        made = checkpoint.gather(source, tmp_path / f"{len(other)}", model=model)
        assert json.loads((made.path / "config.json").read_text()) == config_json(model)


# -- what is refused ---------------------------------------------------------------------------------


def test_progress_reaches_the_end_once(whole, tmp_path):
    seen = []
    made = checkpoint.shard(
        whole(tiny()), tmp_path / "new", tp=2, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[0][0] == 0
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {made.nbytes}
    assert seen[-1][0] == made.nbytes
