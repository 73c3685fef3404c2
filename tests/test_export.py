"""The "copy as" texts: each says the same job again, in the words of whoever will read it."""

import re
import shlex
from dataclasses import replace
from functools import wraps

import pytest
from hypothesis import given

import llamapar as lp
from inputs import jobs
from llamapar.cli import main as cli
from llamapar.describe.options import EXPORT_TITLES
from llamapar.rules.job_text import as_cli, as_python, exported

PAPER = lp.Job.of(
    "llama3.1-405b", lp.Layout(tp=8, cp=16, pp=16, dp=4), gpus=16384, seq_len=131072, batch_per_dp=16
)
NAMES = ["it's", 'a"b\\', "$(touch x) `id`", "line\nbreak", "\x1b[31m", "é→😀\u2028", "#", "", "-" * 300]


def job_of(asked):
    """The Job, and the framework's name, of the arguments of `lp.check`."""
    report = lp.check(**asked)
    return report.job, asked["framework"]


def from_python(text):
    """The report that the Python text makes, without the fixes that a refusal of `require` would look for."""
    names = {}
    exec(text.replace("lp.require(", "lp.check("), names)
    return names["report"]  # type: ignore[no-any-return]


class Seen(Exception):
    """Carries the report that a command would print."""


def from_cli(text):
    """The report that the shell's words make."""
    check = lp.check

    @wraps(check)
    def watched(*arguments, **options):
        raise Seen(check(*arguments, **options))

    program, *words = shlex.split(text, comments=True)
    assert program == "llamapar"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llamapar.rules.report.check", watched)
        try:
            cli.main(words)
        except Seen as seen:
            return seen.args[0]  # type: ignore[no-any-return]
    raise AssertionError(text)


def comments(text):
    return [line for line in text.splitlines() if line.startswith("#")]


# -- Python and the command line -----------------------------------------------------------------


@given(jobs())
def test_python_and_the_command_line_say_the_job_again(asked):
    job, framework = job_of(asked)
    for report in (from_python(as_python(job, framework)), from_cli(as_cli(job, framework))):
        assert report.job == job
        assert (report.judge.name if report.judge else None) == framework


def test_a_preset_with_other_dimensions_is_written_out():
    job = PAPER.replace(model=PAPER.model.replace(n_kv_heads=16))
    assert from_python(as_python(job)).job == job
    text = as_cli(job)
    assert "# left out: rope_scaling (no rule asks for it)" in comments(text)
    assert from_cli(text).job == job.replace(model=replace(job.model, rope_scaling=None))


# -- every text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("title", EXPORT_TITLES.values())
def test_hostile_names_stay_names(title, name):
    plain = re.compile(r"# [A-Za-z0-9._+-]{1,60}: tp=8 cp=1 pp=1 dp=2 \(16 ranks\)")
    model = lp.model("llama2-7b").replace(name=name, n_layers=30)
    text = exported(title, lp.Job.of(model, lp.Layout(tp=8, dp=2)))
    assert plain.fullmatch(text.splitlines()[0])
    assert text.isascii()
    assert all(line.isprintable() for line in text.split("\n"))
    report = {"Python": from_python, "CLI": from_cli}[title](text)
    assert report.job.model == model
