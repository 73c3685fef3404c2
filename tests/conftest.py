"""What every test shares: the counts of `--soak` and `--deep`, the hypothesis profiles, visible skips.

A property test needs nothing of its own: hypothesis takes its number of examples from the profile,
so leave `max_examples` out of `@settings`. A test over a long list of cases asks for `sample`:

    def test_every_divisor(sample):
        for tp, heads in sample(all_pairs, 200):  # 200 seeded ones; all of them in `make soak`

A test that only makes sense at full length is marked `soak`. What takes too long even there asks for
`counts`, which keep some of it in the soak and all of it in `make deep`, or is marked `deep`:

    def test_a_rank_is_killed(counts):
        for _ in range(counts(1, 3, 20)):  # in `make test`, `make soak` and `make deep`

    def test_every_layout(counts):
        for layout in drawn(LAYOUTS, counts(3, 20, 75)):  # `drawn` of inputs.py is what `sample` draws
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warm_kernel

# jsonschema, which reads notebooks, builds 39 grammars for URIs with it at each start, for seconds.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

try:
    import hypothesis

    from browser.lab import NAMES, find_chromium
    from inputs import drawn
except ImportError:  # a bare GPU machine: torch, numpy and pytest
    hypothesis = None  # type: ignore[assignment]

PROJECT = Path(__file__).resolve().parent.parent
BARE = "test_gpu.py"  # what needs no more than that
HERE = Path(__file__).parent
collect_ignore = (
    [] if hypothesis else ["browser", *(p.name for p in HERE.glob("test_*.py") if p.name != BARE)]
)
LONGEST = (
    "browser",
    "notebooks",
    "test_torchrun.py",
    "test_pool.py",
    "test_interrupts.py",
    "test_texts.py",
    "test_modules.py",
    "test_step.py",
    "test_programs.py",
    "test_boxes.py",
    "test_watch.py",
    "test_watch_cases.py",
    "test_wheel.py",
    "test_witnesses.py",
    "test_zero.py",
)
"""Folders and files that begin first, so that no process is left alone with one of them at the end."""

FULL_COUNTS = {"soak", "sample", "counts"}  # the fixtures that make a test longer under --soak
DEEP_COUNTS = {"deep", "counts"}  # and under --deep


@pytest.fixture(scope="module", autouse=True)
def no_ranks_left_open() -> Iterator[None]:
    """Local ranks that a file has stepped through hold the process's one process group until the next run."""
    yield
    engine = sys.modules.get("llamapar.execution.engines.local")
    if engine is not None:
        engine.close_ranks()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        action="store_true",
        default=os.environ.get("LLAMAPAR_SOAK", "0") not in ("", "0"),
        help="run only the tests that have full counts, at their full counts (or LLAMAPAR_SOAK=1)",
    )
    parser.addoption(
        "--deep",
        action="store_true",
        default=os.environ.get("LLAMAPAR_DEEP", "0") not in ("", "0"),
        help="run only the tests that are longer still than under --soak (or LLAMAPAR_DEEP=1)",
    )


def pytest_report_header() -> list[str]:
    return [] if hypothesis else [f"no hypothesis here: tests/{BARE} is all that is collected"]


def pytest_configure(config: pytest.Config) -> None:
    if hypothesis:
        _set_profiles(config)

    # A process of tests is one of several: in each, and in what it starts, torch computes on one core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    # Most of what there is, tests and torch's modules, stays to the end: look for garbage less often.
    gc.set_threshold(700, 10, 100)

    # Kernels that tests start know the project's Jupyter settings, not those of whoever runs them.
    state = Path(tempfile.mkdtemp(prefix="llamapar-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    environment = runpy.run_path(str(PROJECT / "jupyter" / "start.py"))["environment"](state)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment, JUPYTER_PATH=str(state))
    warm = state / "kernels" / "warm"
    warm.mkdir(parents=True)
    (warm / "kernel.json").write_text(warm_kernel.spec(state))


def _set_profiles(config: pytest.Config) -> None:
    hypothesis.settings.register_profile(
        "test", derandomize=True, database=None, deadline=None, max_examples=15
    )
    hypothesis.settings.register_profile(
        "soak",
        derandomize="CI" in os.environ,  # elsewhere every soak looks at new examples
        database=None,
        deadline=None,
        max_examples=2000 if config.getoption("deep") else 50,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("soak" if _full(config) else "test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _full(config):
        is_longer = _has_deep_counts if config.getoption("deep") else _has_full_counts
        longer = [item for item in items if is_longer(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in longer])
        items[:] = longer
    else:
        _skip(items, "soak", "full counts: make soak")
        _skip(items, "deep", "the longest counts: make deep")
    items.sort(key=_is_short)  # which keeps the order otherwise
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            _skip(items, "gpu", "no CUDA device")
    if hypothesis and find_chromium() is None:
        _skip(
            items,
            "browser",
            f"no Chromium: install one ({', '.join(NAMES)}) or set LLAMAPAR_CHROMIUM",
        )


@pytest.fixture(scope="module")
def no_ranks_left() -> Iterator[None]:
    """One thread a rank while the tests of a module run, whose tensors are tiny, and no pool after them."""
    import torch

    from llamapar.execution.engines import pool

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    pool.close_pool()


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> bool:
    """Whether this run is at full counts, or longer ones."""
    return _full(request.config)


@pytest.fixture
def deep(request: pytest.FixtureRequest) -> bool:
    """Whether this run is at the longest counts."""
    return bool(request.config.getoption("deep"))


@pytest.fixture
def counts(soak: bool, deep: bool) -> Callable[[int, int, int], int]:
    """`counts(a, b, c)`: a in `make test`, b in `make soak`, c in `make deep`."""

    def choose(test: int, full: int, longest: int) -> int:
        if deep:
            return longest
        return full if soak else test

    return choose


@pytest.fixture
def sample(soak: bool) -> Callable[[Iterable[Any], int], list[Any]]:
    """`sample(cases, n)`: all cases under --soak, else `n` of them, seeded and in their order."""

    def choose(cases: Iterable[Any], n: int) -> list[Any]:
        return list(cases) if soak else drawn(cases, n)

    return choose


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str | list[str]], tuple[int, str, str]]:
    """The command: `run("check --tp 8")` or `run([...])` gives exit status, stdout, stderr."""
    from llamapar.cli import main as cli
    from llamapar.cli import output

    monkeypatch.setattr(output, "PATIENCE", 3600.0)  # a busy machine is no reason to speak

    def call(words: str | list[str]) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main(shlex.split(words) if isinstance(words, str) else words)
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def refused(run: Callable[[str], tuple[int, str, str]]) -> Callable[[str, str, str], None]:
    """`refused(line, what, choice)`: bad input is told as `what`, and `choice` stands in the last line."""

    def look(line: str, what: str, choice: str) -> None:
        status, out, err = run(line)
        assert (status, out) == (2, "")
        assert err.startswith(f"llamapar: {what}")
        assert choice in err.splitlines()[-1]
        assert err.splitlines()[-1].startswith("  try  ")
        status, out, _ = run(f"{line} --json")
        assert status == 2
        assert json.loads(out)["error"]["message"].startswith(what)

    return look


def _full(config: pytest.Config) -> bool:
    return bool(config.getoption("soak") or config.getoption("deep"))


def _has_deep_counts(item: pytest.Item) -> bool:
    return _is_longer(item, DEEP_COUNTS, "deep")


def _has_full_counts(item: pytest.Item) -> bool:
    return _is_longer(item, FULL_COUNTS, "soak")


def _is_longer(item: pytest.Item, fixtures: set[str], mark: str) -> bool:
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    uses = fixtures & set(getattr(item, "fixturenames", ()))
    return bool(is_property or uses or item.get_closest_marker(mark))


def _is_short(item: pytest.Item) -> bool:
    return item.path.name not in LONGEST and item.path.parent.name not in LONGEST


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test's reader keeps what was guessed and solved."""
    path = tmp_path / "progress.json"
    monkeypatch.setenv("LLAMAPAR_PROGRESS", str(path))
    return path
