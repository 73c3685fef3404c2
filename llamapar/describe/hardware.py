"""GPUs by the names that people type: memory, peak rates, and the links between them.

Peaks are the makers'. What kernels and collectives really reach of them is a share from published
measurements; the source of each is named, and a share without a source is marked as assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from llamapar.errors import Choice, LlamaparError, one_of, shown, whole

GPUS = {
    "a100-40gb": 40960 * 2**20,
    "a100-80gb": 81920 * 2**20,
    "h100-80gb": 81559 * 2**20,
    "h100-96gb": 97871 * 2**20,
    "h200-141gb": 143771 * 2**20,
    "b200-180gb": 183359 * 2**20,
}
"""GPU → bytes of HBM, as nvidia-smi's total; the driver's share counts as part of CUDA's context.

Sources. A100 and H100 80 GB: modal-labs/modal-client pull request 2797. H200, B200: nvidia-smi's listings in
many repositories; torch counts some 0.4 % less (178.35 GiB of a B200: pytorch/ao pull request 4002). H100 96
GB: as listed for the same 96 GB in an H20 and a GH200; no listing of the H100 itself was found.
"""

DEFAULT_GPU = "h100-80gb"
"""The default GPU: the paper's (arXiv:2407.21783, section 3.3.1)."""


@dataclass(frozen=True)
class Gpu:
    """What a GPU can do, and what connects it. Rates are per second and in one direction.

    hbm_bytes: bytes of memory. bfloat16, float8: dense peak in FLOP/s; float8 is 0 on a GPU without it.
    hbm_rate, link_rate, net_rate: bytes/s of memory, to GPUs of its domain (NVLink), to others (its NIC).
    domain: how many GPUs the fast link joins. watts: its power limit. full_watts: the limit at which it
    reaches its peaks.
    gemm, gemm_float8: share of the peak that the best matmul shapes reach at full_watts.
    sustained, sustained_float8: share of that rate that the matmuls of a training step sustain.
    attention, attention_backward: share of the bfloat16 peak that fused attention reaches.
    link, net: share of the link rates that large collectives reach. source: of these numbers.
    """

    name: str
    hbm_bytes: int
    bfloat16: float
    float8: float
    hbm_rate: float
    link_rate: float
    net_rate: float
    domain: int
    watts: float
    full_watts: float
    gemm: float
    gemm_float8: float
    attention: float
    attention_backward: float
    link: float = 0.81
    net: float = 0.95
    sustained: float = 0.79
    sustained_float8: float = 0.89
    source: str = ""

    @property
    def throttle(self) -> float:
        """Share of a float8 matmul's rate left by the power limit; assumed proportional to watts."""
        return min(1.0, self.watts / self.full_watts)

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
        return self.bfloat16 * self.gemm * self.sustained * self.capped


POWER = 0.63
"""A share p of the full power limit leaves p ** POWER of the bfloat16 rate.

An H100's peak is 989 TFLOP/s at 700 W and 800 at 500 W (arXiv:2411.01783 appendix A). For float8 no source
was found; it is taken as proportional, which agrees with NVIDIA's runs at 700 W.
"""

_MAMF = "matmuls: stas00/ml-engineering, compute/accelerator/README.md, maximum achievable matmul FLOPS"
_FA3 = "attention: arXiv:2407.08608 figures 5 and 6, head_dim 128"
_FA2 = "attention: arXiv:2307.08691 figures 4 to 6, 50 to 73 % of an A100's peak"
_NVIDIA = "peaks and rates: NVIDIA's, where they were read: docs/time.md"
_H100 = "; ".join([_NVIDIA, _MAMF, _FA3])


def _gpu(
    name: str,
    peaks: tuple[float, float],
    rates: tuple[float, float, float],
    domain: int,
    watts: float,
    matmuls: tuple[float, float],
    attention: tuple[float, float] = (0.64, 0.50),
    source: str = _H100,
    hbm: int = 0,
    sustained: float = 0.79,
) -> Gpu:
    """A Gpu from TFLOP/s, TB/s of memory, and GB/s of links."""
    bfloat16, float8 = (peak * 1e12 for peak in peaks)
    hbm_rate, link_rate, net_rate = rates[0] * 1e12, rates[1] * 1e9, rates[2] * 1e9
    held = GPUS.get(name, hbm)
    linked = (hbm_rate, link_rate, net_rate, domain)
    reached = (*matmuls, *attention)
    return Gpu(
        name, held, bfloat16, float8, *linked, watts, watts, *reached, sustained=sustained, source=source
    )


_A100 = "; ".join([_NVIDIA, _MAMF, _FA2])
_AS_H100 = f"{_H100}; attention as on an H100 (assumed)"
_ROWS = (
    _gpu("a100-40gb", (312, 0), (1.555, 300, 25), 8, 400, (0.869, 0.0), (0.60, 0.53), _A100, 0, 0.89),
    _gpu("a100-80gb", (312, 0), (2.039, 300, 25), 8, 400, (0.869, 0.0), (0.60, 0.53), _A100, 0, 0.89),
    _gpu("h100-80gb", (989.4, 1978.9), (3.35, 450, 50), 8, 700, (0.803, 0.709)),
    replace(
        _gpu("h100-96gb", (989.4, 1978.9), (2.4, 450, 50), 8, 700, (0.803, 0.709)),
        watts=500,
        source=f"{_H100}; 500 W and 2.4 TB/s: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md",
    ),
    _gpu("h100-pcie", (756, 1513), (2.0, 64, 50), 2, 350, (0.803, 0.709), source=_AS_H100, hbm=80 * 2**30),
    _gpu("h100-nvl", (835, 1671), (3.9, 300, 50), 2, 400, (0.803, 0.709), source=_AS_H100, hbm=94 * 2**30),
    _gpu("h200-141gb", (989.4, 1978.9), (4.8, 450, 50), 8, 700, (0.803, 0.734)),
    _gpu("b200-180gb", (2250, 4500), (7.7, 900, 50), 8, 1000, (0.776, 0.763), source=_AS_H100),
    _gpu(
        "gb200-nvl72",
        (2500, 5000),
        (8.0, 900, 50),
        72,
        1200,
        (0.729, 0.723),
        source=_AS_H100,
        hbm=186 * 10**9,
    ),
    _gpu(
        "mi300x",
        (1307.4, 2614.9),
        (5.3, 448, 50),
        8,
        750,
        (0.514, 0.514),
        (0.30, 0.25),
        f"peaks and rates: AMD's, where they were read: docs/time.md; {_MAMF}, float8 as bfloat16 (assumed);"
        " attention: half of an H100's share (assumed)",
        192 * 2**30,
    ),
)
HARDWARE: dict[str, Gpu] = {gpu.name: gpu for gpu in _ROWS}
"""GPU → what it can do.

sustained: torchtitan measured 70B with TP 8 on H100 of 500 W
(benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md). In bfloat16 it makes 597 tokens/s a GPU, which `cost`
gives with 0.79; with TP's collectives beside matmuls 652, for 0.78; in float8 810, for 0.91. Those runs are
not among the rows that score the predictions. Other GPUs get the H100's share, which is limited by power. The
A100 is not: a layer of 22B (arXiv:2205.05198 table 4, TP 8 without sequence parallelism) took 19.6 ms, for
which `cost` gives 20.3 with 0.89, and 21.7 with 0.79.

link and net: nccl-tests, 366 GB/s of bus bandwidth of 450 in a node of H100, 386 GB/s of 8·50 over eight
nodes (coreweave/nccl-tests). Memory sizes were read from nvidia-smi only for the names in GPUS.
"""

_MOST = {"hbm_bytes": 2.0**50, "domain": 2.0**16, "watts": 1e5, "full_watts": 1e5}
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


def hardware(gpu: str | Gpu | Mapping[str, object]) -> Gpu:
    """A GPU by name, or a custom one from a dict of changes to a named GPU.

    The dict is {"base": a name, any field of Gpu: its value, "nccl_tests": text}. nccl_tests is the printed
    output of an nccl-tests program: the bus bandwidth of its largest message becomes `link_rate` if it ran on
    one machine, else `net_rate`. Raises LlamaparError, naming the field.
    """
    if isinstance(gpu, Gpu):
        return gpu
    if isinstance(gpu, str):
        return HARDWARE[one_of("gpu", gpu, HARDWARE, LlamaparError)]
    if not isinstance(gpu, Mapping):
        raise LlamaparError(f"gpu={shown(gpu)}: a name or a dict is needed", "", list(HARDWARE), "gpu")
    # A copy: the keys are popped below, and the dict belongs to the caller.
    given = dict(gpu)
    base = hardware(str(given.pop("base", DEFAULT_GPU)))
    text = given.pop("nccl_tests", None)
    known = {field.name for field in fields(Gpu)}
    values: dict[str, object] = {}
    for name, value in given.items():
        one_of("field of a GPU", name, known, LlamaparError)
        values[name] = str(value) if name in ("name", "source") else _rate(name, value, getattr(base, name))
    values.setdefault("name", f"{base.name} of one's own")
    made = replace(base, **values)  # type: ignore[arg-type]
    return made if text is None else measured(made, str(text))


def _rate(name: str, value: object, usual: float) -> float | int:
    """A checked rate, share or count of a GPU. usual: the value that the error suggests."""
    if name in ("domain", "hbm_bytes"):
        return whole(name, value, 1, int(_MOST[name]))
    most = 1.0 if name in _SHARES else _MOST.get(name, _MOST_RATE)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 < value <= most:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    need = f"{name} must be a number over 0, and at most {most:g}"
    raise LlamaparError(f"{name}={shown(value)}: {need}", "", [Choice.of(**{name: usual})], name)


_NCCL_ROW = re.compile(r"^ *(\d+) +\d+ +\w+ +\w+ +-?\d+ +[\d.]+ +[\d.]+ +([\d.]+)", re.MULTILINE)
_NCCL_HOST = re.compile(r"^# +Rank +\d+ .*? on +(\S+) +device", re.MULTILINE)


def measured(gpu: Gpu, text: str) -> Gpu:
    """The GPU with the bus bandwidth from nccl-tests output. Raises LlamaparError if the text has none."""
    rows = [(int(size), float(busbw)) for size, busbw in _NCCL_ROW.findall(text)]
    if not rows or max(rows)[1] <= 0:
        why = "its lines are size, count, type, redop, root, time, algbw, busbw"
        raise LlamaparError(
            "no line of nccl-tests was found", why, ["all_gather_perf -b 1M -e 8G"], "nccl_tests"
        )
    hosts = _NCCL_HOST.findall(text)
    # The largest message comes nearest to the bandwidth that a training step's tensors see.
    rate = max(rows)[1] * 1e9
    ran = f"nccl-tests, {rate / 1e9:g} GB/s"
    source = "; ".join(filter(None, [gpu.source, ran]))
    if len(set(hosts)) > 1:  # each host's NICs carry the ring of all its GPUs
        return replace(gpu, net_rate=rate / (len(hosts) / len(set(hosts))), net=1.0, source=source)
    # A measured rate already is what collectives reach, so its share is 1.
    return replace(gpu, link_rate=rate, link=1.0, source=source)
