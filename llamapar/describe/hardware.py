"""GPUs by the names that people type: memory, peak rates, and the links between them.

Peaks are the makers'. What kernels and collectives really reach of them is a share from published
measurements; the source of each is named, and a share without a source is marked as assumed. The table is
gpus.csv. A GPU of one's own is data with the same fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path

from llamapar.errors import Choice, LayoutError, LlamaparError, one_of, shown, whole

from .configfile import is_json

DEFAULT_GPU = "h100-80gb"
"""The default GPU: the paper's (arXiv:2407.21783, section 3.3.1)."""


_NEEDED = {"bfloat16": (), "float8": ("float8", "gemm_float8"), "mxfp8": ("mxfp8",), "nvfp4": ("nvfp4",)}
"""Precision → what the time of a step needs to know of a GPU beyond _TIMED."""

PRECISIONS = tuple(_NEEDED)


@dataclass(frozen=True, repr=False)
class Gpu:
    """What a GPU can do, and what connects it. Rates are per second and in one direction.

    hbm_bytes: bytes of memory. bfloat16, float8: dense peak in FLOP/s; float8 is 0 on a GPU without it.
    hbm_rate, link_rate, net_rate: bytes/s of memory, to GPUs of its domain (NVLink), to others (its NIC).
    domain: how many GPUs the fast link joins. watts: its power limit. full_watts: the limit at which it
    reaches its peaks.
    gemm, gemm_float8: share of the peak that the best matmul shapes reach at full_watts.
    sustained, sustained_float8: share of that rate that the matmuls of a training step sustain.
    mxfp8, nvfp4: FLOP/s that those matmuls sustain in these, as fitted to a trainer's runs.
    attention, attention_backward: share of the bfloat16 peak that fused attention reaches.
    link, net: share of the link rates that large collectives reach. source: of these numbers.

    Memory is always known; 0 stands for any other number that is unknown.
    """

    name: str
    hbm_bytes: int
    bfloat16: float = 0.0
    float8: float = 0.0
    hbm_rate: float = 0.0
    link_rate: float = 0.0
    net_rate: float = 0.0
    domain: int = 0
    watts: float = 0.0
    full_watts: float = 0.0
    gemm: float = 0.0
    gemm_float8: float = 0.0
    attention: float = 0.0
    attention_backward: float = 0.0
    link: float = 0.81
    net: float = 0.95
    sustained: float = 0.79
    sustained_float8: float = 0.89
    mxfp8: float = 0.0
    nvfp4: float = 0.0
    source: str = ""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return repr(self.text)

    @property
    def text(self) -> str:
        """The text that `hardware` reads it from: its name, or JSON for a GPU of one's own."""
        if HARDWARE.get(self.name) == self:
            return self.name
        bases = ({}, UNNAMED), *(({"base": name}, gpu) for name, gpu in HARDWARE.items())
        # A GPU of one's own is told as a base, or none, and what differs from it.
        told = (
            start | {name: value for name, value in vars(self).items() if value != usual[name]}
            for start, base in bases
            for usual in [vars(base) | {"name": _own_name(base)}]
        )
        return min((json.dumps(one) for one in told if all(one.values())), key=len)  # 0 cannot be told

    def unknown_rates(self, precision: str = "bfloat16") -> list[str]:
        """What the time of a step needs in a precision and this GPU does not say."""
        return [name for name in (*_TIMED, *_NEEDED[precision]) if not getattr(self, name)]

    def require_rates(self, precision: str) -> None:
        """Raises LlamaparError if anything is unknown that the time of a step needs in a precision."""
        if missing := self.unknown_rates(precision):
            what = f"gpu={self.name}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not known"
            why = "the time of a step needs these rates"
            if _NEEDED[precision]:
                known = (name for name, gpu in HARDWARE.items() if not gpu.unknown_rates(precision))
                why += f"; {precision} has some on {', '.join(known)}"
            raise LlamaparError(what, why, ['"base": the name of a GPU with similar rates'], missing[0])

    @property
    def throttle(self) -> float:
        """Share of a float8 matmul's rate left by the power limit; assumed proportional to watts."""
        if self.full_watts:
            return min(1.0, self.watts / self.full_watts)
        return 1.0

    @property
    def capped(self) -> float:
        """Share of a bfloat16 matmul's rate left by the power limit."""
        # Less power lowers the clock, and the voltage with it, so the rate falls more slowly than the
        # watts.
        return self.throttle**POWER

    def sustains(self, dtype: str) -> float:
        """FLOP/s that the matmuls of a training step sustain in a dtype."""
        if dtype == "float8":
            return self.float8 * self.gemm_float8 * self.sustained_float8 * self.throttle
        if dtype in ("mxfp8", "nvfp4"):
            fitted: float = getattr(self, dtype)
            return fitted * self.throttle
        return self.bfloat16 * self.gemm * self.sustained * self.capped


POWER = 0.63
"""A share p of the full power limit leaves p ** POWER of the bfloat16 rate.

An H100's peak is 989 TFLOP/s at 700 W and 800 at 500 W (arXiv:2411.01783 appendix A). For float8 no source
was found; it is taken as proportional, which agrees with NVIDIA's runs at 700 W.
"""

_SOURCES = {
    "NVIDIA": "peaks and rates: NVIDIA's, where they were read: docs/time.md",
    "BRIDGE": (
        "float8, MXFP8, NVFP4: fitted to NVIDIA's runs of Llama 3.1 405B, NVIDIA-NeMo/Megatron-Bridge, "
        "docs/performance-archive.md @067f987d"
    ),
    "AMD": "peaks and rates: AMD's, where they were read: docs/time.md",
    "MAMF": (
        "matmuls: stas00/ml-engineering, compute/accelerator/README.md, maximum achievable matmul FLOPS"
    ),
    "SQUARE": "matmuls: zzc0721/torch-performance-test-data, database.md @078586871da3, square ones",
    "FA2": "attention: arXiv:2307.08691 figures 4 to 6, 50 to 73 % of an A100's peak",
    "FA3": "attention: arXiv:2407.08608 figures 5 and 6, head_dim 128",
}
"""The names of sources in gpus.csv."""

_UNITS = {"hbm_rate": 1e9, "link_rate": 1e9, "net_rate": 1e9} | dict.fromkeys(PRECISIONS, 1e12)
"""Column of gpus.csv → what it counts; a column that is not here is in the field's own unit."""


UNNAMED = Gpu("a GPU", 0)
"""A GPU of which nothing is known."""


def _own_name(base: Gpu) -> str:
    """The name of a GPU of one's own that has none."""
    return f"{base.name} of one's own"


def _gpu(row: dict[str, str]) -> Gpu:
    """A Gpu from the cells of a row, by column name."""
    source = "; ".join(_SOURCES.get(word, word) for word in row["source"].split("; "))
    rates = {name: float(cell) * _UNITS.get(name, 1) for name, cell in row.items() if name in _RATES}
    memory = int(row["memory_mib"]) * 2**20
    domain = int(row["domain"])
    return Gpu(row["name"], memory, domain=domain, source=source, **rates)


_RATES = {field.name for field in fields(Gpu) if field.type == "float"}
_HEAD, *_LINES = Path(__file__).with_name("gpus.csv").read_text(encoding="utf-8").splitlines()
# The last column is a text, in which a comma is no end.
_ROWS = [dict(zip(_HEAD.split(","), line.split(",", _HEAD.count(",")), strict=True)) for line in _LINES]

HARDWARE = {row["name"]: _gpu(row) for row in _ROWS}
"""GPU → what it can do.

sustained: torchtitan measured 70B with TP 8 on H100 of 500 W
(benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md). In bfloat16 it makes 597 tokens/s a GPU, which `cost`
gives with 0.79; with TP's collectives beside matmuls 652, for 0.78; in float8 810, for 0.91. Those runs are
not among the rows that score the predictions. Other GPUs get the H100's share, which is limited by power. The
A100 is not: a layer of 22B (arXiv:2205.05198 table 4, TP 8 without sequence parallelism) took 19.6 ms, for
which `cost` gives 20.3 with 0.89, and 21.7 with 0.79.

link and net: nccl-tests, 366 GB/s of bus bandwidth of 450 in a node of H100, 386 GB/s of 8·50 over eight
nodes (coreweave/nccl-tests).

sustained_float8, mxfp8, nvfp4 of a B200, GB200 and GB300: the medians of 2 to 7 runs of 405B (BRIDGE) for
each GPU and precision, as `cost` has them with framework="megatron-lm" and overlap_tp. The same way gives an
H100 0.892. `cost` gives 5 to 13 % more tokens a second than ten runs of 8B, which were not fitted.

Memory is the total of nvidia-smi or rocm-smi; the driver's share counts as part of CUDA's context. Where each
was read: docs/time.md.
"""


SHORT_NAMES = {short: row["name"] for row in _ROWS for short in row["also"].split()}
"""A short name that people type → the usual variant: "h100" → "h100-80gb"."""

OFFERED = sorted((HARDWARE[row["name"]] for row in _ROWS if row["offered"]), key=lambda gpu: gpu.hbm_bytes)
"""GPUs that a note or a fix proposes, smallest memory first."""

GpuLike = str | Mapping[str, object] | Gpu
"""A GPU as people give it: a name, data of one's own, or a Gpu."""

_TIMED = (
    "bfloat16",
    "hbm_rate",
    "link_rate",
    "net_rate",
    "domain",
    "gemm",
    "attention",
    "attention_backward",
)

_MOST = {"hbm_bytes": 2.0**50, "domain": 2.0**16, "watts": 1e5, "full_watts": 1e5, "memory_gib": 2.0**20}
_SHARES = [
    "gemm",
    "gemm_float8",
    "sustained",
    "sustained_float8",
    "attention",
    "attention_backward",
    "link",
    "net",
]
_MOST_RATE = 1e20


def hardware(gpu: GpuLike) -> Gpu:
    """A GPU by name, or one of your own from data.

    gpu: a name of `HARDWARE`, or a short one ("h100"); a dict, its JSON text, or the path of a .toml or .json
        file with it. The data is {"base": a name, "memory_gib": its memory, any field of Gpu: its value}.
        What it does not say is the base's; without a base it is unknown.

    Raises LlamaparError, naming the field.
    """
    if isinstance(gpu, Gpu):
        return gpu
    if isinstance(gpu, Mapping):
        return _of_data(gpu)
    name = ""
    if isinstance(gpu, str):
        name = re.sub(r"[\s_]+", "-", gpu.strip().lower())
    if found := HARDWARE.get(SHORT_NAMES.get(name, name)):
        return found
    if isinstance(gpu, str) and (is_json(gpu) or gpu.endswith((".toml", ".json"))):
        return _of_data(_read(gpu))
    return HARDWARE[one_of("gpu", gpu, HARDWARE, LayoutError)]


def _read(source: str) -> Mapping[str, object]:
    """The data in a JSON text, or in a file. Raises LlamaparError."""
    try:
        text = source
        if not is_json(source):
            text = Path(source).read_text(encoding="utf-8")
        # tomllib takes 4 ms to import, and few name a file.
        found = (import_module("tomllib") if source.endswith(".toml") else json).loads(text)
    except (OSError, ValueError, RecursionError) as problem:
        what = f"gpu={shown(source)} cannot be read: {problem}"
        raise LlamaparError(what, "", ['{"base": "h100-80gb", "memory_gib": 79.6}'], "gpu") from None
    if not isinstance(found, dict):
        raise LlamaparError(f"gpu={shown(source)}: an object of a GPU's fields is needed", field="gpu")
    return found


def _of_data(data: Mapping[str, object]) -> Gpu:
    """A GPU of one's own. Raises LlamaparError, naming the field."""
    # A copy: the keys are popped below, and the dict belongs to the caller.
    given = dict(data)
    base = given.pop("base", None)
    start = UNNAMED
    example = HARDWARE[DEFAULT_GPU]
    if base is not None:
        start = HARDWARE[one_of("base", SHORT_NAMES.get(str(base), base), HARDWARE, LayoutError)]
    if "memory_gib" in given:
        gib = _rate("memory_gib", given.pop("memory_gib"), example.hbm_bytes / 2**30)
        given["hbm_bytes"] = round(gib * 2**30)
    known = ("base", "memory_gib", *(field.name for field in fields(Gpu)))
    values: dict[str, object] = {}
    for name, value in given.items():
        one_of("field of a GPU", name, known, LlamaparError)
        usual = getattr(start, name) or getattr(example, name)
        values[name] = str(value) if name in ("name", "source") else _rate(name, value, usual)
    made = replace(start, **{"name": _own_name(start), **values})  # type: ignore[arg-type]
    if not made.hbm_bytes:
        why = "without a base only what is given is known, and every answer needs the memory"
        raise LlamaparError(
            "memory_gib is not given", why, ['"base": "h100-80gb"', '"memory_gib": 80'], "memory_gib"
        )
    return made


def _rate(name: str, value: object, usual: float) -> float | int:
    """A checked rate, share or count of a GPU. usual: the value that the error suggests."""
    if name in ("domain", "hbm_bytes"):
        return whole(name, value, 1, int(_MOST[name]))
    most = 1.0
    if name not in _SHARES:
        most = _MOST.get(name, _MOST_RATE)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 < value <= most:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    need = f"{name} must be a number over 0, and at most {most:g}"
    raise LlamaparError(f"{name}={shown(value)}: {need}", "", [Choice.of(**{name: usual})], name)
