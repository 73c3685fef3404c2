"""What checkpoints cost: memory that does not grow with them, and a look into 800 GB by headers alone."""

import json
import mmap
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import llamapar as lp
from llamapar import checkpoint
from llamapar.checkpoint import Sharding, pth, safetensors
from llamapar.describe.modelfile import config_json, params_json
from peak import Peak

HERE = Path(__file__).resolve().parent

MEASURE = f"""
import json, sys
sys.path[:0] = [{str(HERE.parent)!r}, {str(HERE)!r}]
import torch
from pathlib import Path
from llamapar import checkpoint
from llamapar.checkpoint import pth
from peak import Peak

room = Path(sys.argv[1])
pth.lay_out_pth(room / "warm.pth", {{"a": ("F32", (1,))}})
told = {{}}
for name, source, target, options in json.loads(sys.argv[2]):
    with Peak() as peak:
        if options is None:
            assert checkpoint.verify(room / source, against=room / target).ok
        else:
            checkpoint.reshard(room / source, room / target, **options)
    told[name] = peak.anonymous
print(json.dumps(told))
"""

JOBS = [
    ("shard to hf", "whole", "hf8", {"tp": 8, "padding": "64*tp", "pp": 2}),
    ("reshard to meta", "hf8", "meta2", {"tp": 2, "padding": "megatron", "format": "meta"}),
    ("reshard to hf", "meta2", "hf16", {"tp": 16, "padding": "none", "kv_replication": True}),
    ("gather to meta", "hf16", "meta", {"format": "meta"}),
    ("gather to hf", "meta2", "hf", {}),
    ("verify", "meta", "hf16", None),
]


def laid_out(folder, model):
    """A Hugging Face folder of holes; bytes of its largest tensor."""
    folder.mkdir()
    shapes = {p.hf_name: ("BF16", p.shape) for p in model.parameters()}
    safetensors.lay_out_safetensors(folder / "model.safetensors", shapes)
    (folder / "config.json").write_text(json.dumps(config_json(model)))
    return max(2 * p.numel for p in model.parameters())


@pytest.mark.soak
def test_memory_does_not_grow_with_the_checkpoint(tmp_path):
    model = lp.model("llama3.2-1b").replace(n_layers=4, vocab_size=8001, ffn_dim=4096, tied=False)
    largest = laid_out(tmp_path / "whole", model)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), json.dumps(JOBS)], check=True, stdout=subprocess.PIPE
    )
    shutil.rmtree(tmp_path)  # gigabytes
    limit = max(4 * largest, 64e6)
    assert 2 * model.n_params > 5 * largest
    told = json.loads(done.stdout)
    assert told.keys() == {name for name, *_ in JOBS}
    assert {name: n for name, n in told.items() if n > limit} == {}, (told, limit)
    print({name: f"{n / 1e6:.0f} MB" for name, n in told.items()}, f"limit {limit / 1e6:.0f} MB")


def test_the_measure_sees_what_is_allocated(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(bytes(2**25))
    with Peak() as peak:
        # never what the heap has left over
        held = mmap.mmap(-1, 2**25, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, 2**25, 4096):
            held[at] = 1
    assert 2**25 <= peak.anonymous < 2**25 + 2**23
    with Peak() as peak, file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        assert not any(mapped[::4096])
    assert peak.anonymous < 2**23
    assert peak.resident >= 2**24


# -- 405B by its headers -----------------------------------------------------------------------------


def files_of_405b(folder):
    """Llama 3.1 405B as on Hugging Face: 191 files and an index, holes for data; bytes in all."""
    model = lp.model("llama3.1-405b")
    folder.mkdir()
    groups = [{}]
    held = 0
    for p in model.parameters():
        if held and held + 2 * p.numel > 4.9e9:
            groups.append({})
            held = 0
        groups[-1][p.hf_name] = ("BF16", p.shape)
        held += 2 * p.numel
    files = {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, 1)}
    for name, group in files.items():
        safetensors.lay_out_safetensors(folder / name, group)
    (folder / safetensors.INDEX).write_text(json.dumps(safetensors.index(files, 2 * model.n_params)))
    (folder / "config.json").write_text(json.dumps(config_json(model)))
    return 2 * model.n_params


def shards_of_405b(folder):
    """Llama 3.1 405B as Meta has it for 16 ranks, holes for data; bytes in all."""
    model = lp.model("llama3.1-405b-mp16")
    sharding = Sharding(model, lp.Layout(tp=16), naming="meta")
    folder.mkdir()
    shapes = {name: ("BF16", sharding.local_shape(p, 0)) for name, p in sharding.tensors[0].items()}
    for rank in range(16):
        pth.lay_out_pth(folder / f"consolidated.{rank:02d}.pth", shapes)
    (folder / "params.json").write_text(json.dumps(params_json(model)))
    return 16 * 51_267_928_064


def bytes_read():
    """All that this process has asked the system to read."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="what was read stands in Linux's /proc")
@pytest.mark.parametrize(
    ("make", "config"),
    [
        (files_of_405b, True),
        pytest.param(files_of_405b, False, marks=pytest.mark.soak),
        pytest.param(shards_of_405b, True, marks=pytest.mark.soak),
        pytest.param(shards_of_405b, False, marks=pytest.mark.soak),
    ],
)
def test_of_405b_the_heads_alone_are_read(tmp_path, make, config):
    size = make(tmp_path / "it")
    if not config:
        next(p for p in (tmp_path / "it").iterdir() if p.name in ("config.json", "params.json")).unlink()
    before = bytes_read()
    found = checkpoint.inspect(tmp_path / "it")
    assert bytes_read() - before < 20_000_000
    assert found.ok
    assert found.checkpoint.nbytes == size
    assert "llama3.1-405b" in str(found) or config
    assert len(found.findings) == (make is shards_of_405b) + (not config)
