"""`import llamapar`, a check and every map need nothing but Python: proved in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import llamapar

HEAVY = (
    "torch",
    "plotly",
    "ipywidgets",
    "numpy",
    "IPython",
    "anywidget",
    "jupyterlab",
    "pandas",
    "traitlets",
)

CORE = """
import llamapar as lp
layout = lp.Layout(tp=8, cp=16, pp=16, dp=8)
report = lp.check("llama3.1-405b", layout, gpus=16384, seq_len=131072, framework="torchtitan")
str(report), report._repr_html_(), report.as_dict(), lp.check("llama3-8b", {"tp": 16}).fixes
for record in (
    lp.heads("llama3-8b", layout),
    lp.vocab("llama3-8b", layout, padding="megatron"),
    lp.ffn("llama3-8b", layout),
    lp.sequence(layout, 131072),
    lp.stages("llama3.1-405b", layout),
    lp.ranks(layout, 12345),
    lp.traffic("llama", "llama3-8b", lp.Layout(tp=8), seq_len=8192),
):
    str(record), record._repr_html_()
lp.ModelConfig.from_hf({"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 64, "vocab_size": 64})
lp.shrink(lp.model("llama3.1-405b"), layout)
dir(lp)
"""


def loaded(code: str, *names: str) -> set[str]:
    """Which of `names` a fresh interpreter holds after running `code`."""
    ask = f"{code}\nimport sys\nprint('|'.join(n for n in {names!r} if n in sys.modules))"
    run = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{ask}"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.strip().split("|")) - {""}


ROOT = Path(llamapar.__file__).parent.parent


def test_importing_llamapar_loads_nothing_heavy() -> None:
    assert loaded("import llamapar", *HEAVY) == set()


def test_the_core_loads_nothing_heavy() -> None:
    assert loaded(CORE, *HEAVY, "llamapar.figures", "llamapar.panels", "llamapar.cli") == set()


def test_the_command_line_loads_nothing_heavy() -> None:
    assert loaded("import llamapar.cli.main", *HEAVY) == set()


def test_names_that_need_more_load_it_when_used() -> None:
    used = "import llamapar as lp\nlp.view"
    assert loaded(used, "llamapar.figures", "llamapar.panels", "torch") == {"llamapar.figures"}


# -- would the test notice? ------------------------------------------------------------------------


def test_the_helper_reports_what_is_loaded() -> None:
    assert loaded("import json", "json", "torch") == {"json"}
    assert loaded("pass", "llamapar", "plotly") == set()


@pytest.mark.parametrize("name", ["plotly", "numpy"])
def test_the_helper_would_notice_a_heavy_import(name: str) -> None:
    pytest.importorskip(name)
    assert name in loaded(f"import llamapar\nimport {name}", *HEAVY)
    assert loaded(f"{CORE}\nimport {name}", name) == {name}


def test_the_helper_does_not_hide_a_broken_import() -> None:
    with pytest.raises(AssertionError, match="No module named 'no_such_module'"):
        loaded("import no_such_module", "json")


BARE_NAMES = """
import sys
for name in ("anywidget", "torch", "plotly"):
    sys.modules[name] = None  # as if it were not installed
import llamapar as lp
view = lp.view(lp.heads("tiny", tp=2))
for owner, name in ((lp, "explorer"), (lp, "run"), (view, "figure")):
    try:
        getattr(owner, name)
    except ImportError as problem:
        print(problem)
"""


def test_a_name_that_needs_more_says_how_to_get_it() -> None:
    run = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{BARE_NAMES}"]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == (
        "lp.explorer needs anywidget, which is not installed\n"
        "  try  pip install -e '.[lab]' in a checkout of llamapar\n"
        "lp.run needs torch, which is not installed\n"
        "  try  pip install -e '.[run]' in a checkout of llamapar\n"
        "View.figure needs plotly, which is not installed\n"
        "  try  pip install -e '.[lab]' in a checkout of llamapar\n"
    )
