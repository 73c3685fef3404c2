"""What is certain of a job whose settings leave facts open: the rules that rest on none of them.

Each open fact is filled in with several values that differ in what divides them. A message names the numbers
that its rule rests on, so a rule is judged where neither its severity nor its words change with any of these
values. The other rules are listed with the facts that they need, but for those that rest on a fact which
nobody gave and which has no default. Memory gets a bracket where it is known which values of an open fact
need the least and the most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llamapar.count.terms import GIB
from llamapar.describe.layout import AXES, Layout
from llamapar.describe.models import PRESETS
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import DIMS, Settings
from llamapar.records.tables import AsDict, Plain, Record, plural
from llamapar.rules.memory_rule import memory_of
from llamapar.rules.report import Finding, Report, check
from llamapar.rules.table import ARITHMETIC, ERROR, NOTE

_TRIED: Mapping[str, tuple[object, ...]] = {
    "tp": (8, 3, 2, 1),
    "cp": (4, 3, 2, 1),
    "pp": (8, 3, 2, 1),
    "dp": (64, 5, 2, 1),
    "dim": (8192, 4099),
    "n_layers": (64, 61, 1),
    "n_heads": (64, 77),
    "n_kv_heads": (8, 7, 1),
    "ffn_dim": (32768, 13337),
    "vocab_size": (131072, 50257),
    "seq_len": (8192, 4099),
    "gpus": (512, 7),
    "micro_batch": (1, 2, 3, 8),
    "micro_batches": (64, 3, 1),
    "global_batch": (1024, 7),
    "virtual_stages": (1, 2, 7),
    "zero": (1, 3, 0),
    "sequence_parallel": (True, False),
    "layer_split": ("equal", "balanced ends"),
}
"""Open fact → values: a round one, one that few numbers divide, and 1 where a rule may ask for it."""

_MUST = (*AXES, *DIMS)
"""Facts without which there is no layout and no model."""

_ALSO = {"LP102": ("n_heads",)}
"""Rule → facts that it rests on without a word."""

_LEAST_MOST = {"vocab_size": (32_000, 262_144), "dp": (16_384, 1)}
"""Open fact → the values between which real jobs lie, first the one that needs the least memory."""


@dataclass(frozen=True, repr=False)
class IncompleteReport(AsDict, Record):
    """What `check` can say of settings with open facts.

    findings: code, severity, message and reason of what is certain. passed: rules that certainly have nothing
    to say. needs: open fact → codes of the rules that rest on it. memory: a bracket in words; "" without one.
    """

    json_names = ("ok", "findings", "passed", "needs", "memory")
    _left = True

    subject: str
    findings: tuple[tuple[str, str, str, str], ...]
    passed: int
    needs: Mapping[str, tuple[str, ...]]
    memory: str

    @property
    def ok(self) -> bool | None:
        """False if some rule certainly refuses the job; else None, for the others are not judged."""
        return False if any(severity == ERROR for _, severity, *_ in self.findings) else None

    def as_dict(self) -> Plain:
        """Plain values for JSON."""
        names = ("code", "severity", "message", "why")
        return super().as_dict() | {"findings": [dict(zip(names, one, strict=True)) for one in self.findings]}

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        open_codes = {code for codes in self.needs.values() for code in codes}
        rows: list[list[object]] = [list(finding[:3]) for finding in self.findings]
        rows += [[" ".join(codes), "not judged", f"needs {fact}"] for fact, codes in self.needs.items()]
        if self.memory:
            rows.append(["memory", "bracket", self.memory])
        judged = len(self.findings) + self.passed
        title = f"{self.subject}: {judged} of {plural(judged + len(open_codes), 'rule')} judged"
        return title, ["rules", "verdict", "what"], rows, ""


def judge_incomplete(read: Settings, *, framework: str | None = None) -> IncompleteReport:
    """Judge settings as far as their facts go. framework: as in `check`, the one of the settings by default.

    Raises LlamaparError for values that no layout or model can have.
    """
    settings = read if framework is None else replace(read, framework=framework)
    facts = _open(settings)
    first = _outcomes(_filled(settings, {}))
    needs = {fact: {code for code, also in _ALSO.items() if fact in also} for fact in facts}
    for fact in facts:
        for value in _TRIED[fact]:
            needs[fact] |= _moved(first, _filled(settings, {fact: value}))
    # Some rules change only where several facts do, as whether a group leaves its node.
    together = set[str]()
    for place in range(max((len(_TRIED[fact]) for fact in facts), default=0)):
        values = {fact: _TRIED[fact][min(place, len(_TRIED[fact]) - 1)] for fact in facts}
        together |= _moved(first, _filled(settings, values))
    for fact in facts:
        needs[fact] |= together.difference(*needs.values())
    unsure = {code for codes in needs.values() for code in codes}
    certain = {code: found for code, found in first.items() if code not in unsure}
    found = [(code, severity, *words) for code, (severity, words) in certain.items() if severity]
    return IncompleteReport(
        f"without {', '.join(facts)}" if facts else settings.format,
        tuple(found),
        len(certain) - len(found),
        {fact: tuple(code for code in first if code in codes) for fact, codes in needs.items() if codes},
        _memory(settings),
    )


def _open(settings: Settings) -> list[str]:
    """The facts that the settings leave open, of those that have values to try."""
    said = {**settings.model, **settings.layout, **settings.job}
    preset = settings.model.get("preset") in PRESETS and settings.covered
    missing = [name for name in _TRIED if said.get(name) is None and not (preset and name in DIMS)]
    return [name for name in missing if name in (*_MUST, *settings.unknown)]


def _filled(settings: Settings, values: Mapping[str, object]) -> Settings:
    """The settings with every open degree and dimension filled in: by `values`, else by the first tried."""
    missing = _open(settings)
    made = {name: values.get(name, _TRIED[name][0]) for name in missing if name in _MUST}
    model = dict(settings.model)
    if {*made} & {*DIMS}:
        model |= {name: made[name] for name in DIMS if name in made}
        model["head_dim"] = model.get("head_dim") or 128
        heads = int(str(model["n_heads"]))
        groups = int(str(model["n_kv_heads"]))
        # KV heads must divide query heads; whichever of the two is open gives way.
        if heads % groups and "n_heads" in made:
            model["n_heads"] = groups * (8 if heads == _TRIED["n_heads"][0] else 7)
        elif heads % groups:
            model["n_kv_heads"] = heads
    layout = dict(settings.layout) | {name: made[name] for name in AXES if name in made}
    if "dp" in made:
        # A known number of replicas divides dp, whatever it is.
        layout["dp"] = int(str(made["dp"])) * int(str(layout.get("dp_replicate") or 1))
    more = {name: value for name, value in values.items() if name not in made}
    layout |= {name: value for name, value in more.items() if name in Layout.__dataclass_fields__}
    job = dict(settings.job) | {name: value for name, value in more.items() if name not in layout}
    return replace(settings, model=model, layout=layout, job=job, covered=True)


def _moved(first: Mapping[str, object], settings: Settings) -> set[str]:
    """The rules whose outcome is another one with these settings."""
    found = _outcomes(settings)
    return {code for code in first if found[code] != first[code]}


def _outcomes(settings: Settings) -> dict[str, tuple[str | None, tuple[str, str]]]:
    """Code → severity and words of every rule of arithmetic, also of those with nothing to say."""
    report: Report = check(settings)
    severities = {finding.code: finding.severity for finding in report.arithmetic}
    found = {}
    for rule in ARITHMETIC:
        words = Finding(rule, NOTE, report.job, report.judge)
        # "None" stands where a rule speaks of a fact that nobody gave, as of a quantisation group.
        inert = "None" in words.message and rule.code not in severities
        found[rule.code] = severities.get(rule.code), ("", "") if inert else (words.message, words.why)
    return found


def _memory(settings: Settings) -> str:
    """The least and the most memory that the open facts leave, in words."""
    missing = [name for name in _open(settings) if name in (*_MUST, "seq_len", "zero", "micro_batch")]
    if not settings.covered or not {*missing} <= {*_LEAST_MOST}:
        return ""
    ends = []
    for end in (0, 1):
        report = check(_filled(settings, {name: _LEAST_MOST[name][end] for name in missing}))
        # A global batch need not be a multiple of the dp that is filled in.
        job = report.job.replace(global_batch=None) if "dp" in missing else report.job
        try:
            ends.append(memory_of(job, report.judge))
        except LlamaparError:
            return ""
    low = ends[0].low_bytes / GIB
    high = ends[1].high_bytes / GIB
    between = " and ".join(
        f"{name} from {min(_LEAST_MOST[name]):,} to {max(_LEAST_MOST[name]):,}" for name in missing
    )
    return f"{low:.1f} to {high:.1f} GiB on the fullest rank" + (f", for {between}" if between else "")
