"""`import llamapar`, a check and every map need nothing but Python: proved in a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import llamapar

HEAVY = ["torch", "numpy", "plotly", "IPython", "ipywidgets", "anywidget", "traitlets", "jupyterlab"]

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
str(lp.reasons(lp.cost("llama3-8b", lp.Layout(tp=8), seq_len=8192)))
dir(lp)
"""


ROOT = Path(llamapar.__file__).parent.parent


def printed(code):
    """What a fresh interpreter prints."""
    run = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def after(steps, names):
    """Which of `names` a fresh interpreter holds after each step."""
    ask = f"print('|'.join(n for n in {names!r} if n in sys.modules))"
    lines = printed("\n".join(f"{step}\n{ask}" for step in steps)).splitlines()
    return [set(line.split("|")) - {""} for line in lines]


def loaded(code, *names):
    """Which of `names` a fresh interpreter holds after running `code`."""
    return after((code,), names)[0]


def test_facts_of_settings_do_not_wait_for_another_import():
    """The words for recompute and schedules belong to a room that reading alone does not import."""
    rows = ("tt-01-405b-2024-08", "mg-03-apertus-70b")
    code = f"sys.path.insert(0, {str(ROOT / 'tests')!r})\nfrom settings_cases import cases, read\n"
    facts = printed(f"{code}print(*(read(cases()[row]).facts() for row in {rows}))")
    assert "'recompute': 'full'" in facts
    assert "'schedule': 'interleaved-1f1b'" in facts


def test_nothing_heavy_is_loaded_until_it_is_used():
    """Step by step in one interpreter, and at its end a heavy module that the list must show."""
    steps = ("import llamapar", CORE, "import llamapar.cli.main", "llamapar.view", "import numpy")
    names = (*HEAVY, "llamapar.cli", "llamapar.figures", "llamapar.panels")
    view = {"llamapar.cli", "llamapar.figures"}
    assert after(steps, names) == [set(), set(), {"llamapar.cli"}, view, {"numpy", *view}]


BARE_NAMES = """
import sys
for name in ("anywidget", "torch", "plotly"):
    sys.modules[name] = None  # as if it were not installed
import llamapar as lp
view = lp.view(lp.memory("llama3-8b", dp=8, seq_len=8192))
for owner, name in ((lp, "explorer"), (lp, "run"), (view, "figure")):
    try:
        getattr(owner, name)
    except ImportError as problem:
        print(problem)
"""


def test_a_name_that_needs_more_says_how_to_get_it():
    assert printed(BARE_NAMES) == (
        "lp.explorer needs anywidget, which is not installed\n"
        "  try  pip install 'llamapar[lab]'\n"
        "lp.run needs torch, which is not installed\n"
        "  try  pip install 'llamapar[run]'\n"
        "View.figure needs plotly, which is not installed\n"
        "  try  pip install 'llamapar[lab]'\n"
    )
