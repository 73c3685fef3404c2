"""What trials say, as an Explanation: the edit as lines of a diff, and how far it is proved.

An edit is the answer if a proof selects it, or the meaning of its names where nothing could be compared.
What gives other numbers than one process is never the answer. "Not a sharding problem" is said only where
no cut is proved, one process fails alike, and every tensor of the line is whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import replace

from llamapar.describe.layout import Layout
from llamapar.describe.models import model as find_model
from llamapar.diagnosis import explain
from llamapar.diagnosis.conclusions import index_past
from llamapar.diagnosis.explanation import Explanation
from llamapar.diagnosis.hypothesis import Level
from llamapar.diagnosis.known import FACTS
from llamapar.diagnosis.vocabulary import NOT_SHARDING, SHARDING, UNKNOWN
from llamapar.errors import LlamaparError, printable
from llamapar.records.frames import Held, stored, tensor_shape
from llamapar.records.tables import plural
from llamapar.rules.report import check

from . import SECONDS
from .attempts import MEANINGFUL, Attempts, Repair
from .candidates import GATHER, Edit
from .child import unsafe
from .degrees import Degree
from .failure import Facts
from .program import Program, around, names_in
from .proof import BIASED, DIFFERS, FURTHER, PROVED, RUNS

_NO_EFFECT = "each in a copy of this process, without an effect outside"


def repair(program: Program, error: BaseException, seconds: float = SECONDS) -> Explanation:
    """Explain a failure, and find the edit that repairs it by trials that have no effect outside."""
    found = explain(error)
    program.read_files(error)
    reason = unsafe()
    if not program.frames(error):
        reason = "the source of the failing line is not there"
    if reason:
        return replace(found, rivals=(*found.rivals, f"no edit was tried: {reason}"))
    return repaired(program, Attempts(program, error, seconds), found)


def repaired(program: Program, search: Attempts, found: Explanation) -> Explanation:
    """The explanation with what the trials of a search say."""
    if not search.same:
        facts = search.control
        instead = facts if isinstance(facts, str) else f"{facts.kind}: {facts.message}"
        words = f"no edit was tried: run again, the line does not fail as it did: {printable(instead)[:160]}"
        return replace(found, rivals=(*found.rivals, words))
    if program.frames(search.error) and (refusal := impossible(program, search.error, search.facts)):
        what, reasons = refusal
        return replace(
            found, verdict=SHARDING, reason=what, what=what, diagnoses=(), level=Level.LIKELY, source=reasons
        )
    search.run()
    return _Words(program, search, found).explanation()


# -- layouts that no edit repairs ------------------------------------------------------------------


def impossible(program: Program, error: BaseException, facts: Facts) -> tuple[str, tuple[str, ...]] | None:
    """Why no edit can be right: a rank would have part of a head. The sentence, and what `check` says."""
    frame, span = program.frames(error)[0]
    names: dict[str, Held] = {**program.names, **frame.f_globals, **frame.f_locals}
    for name in ("self", *(degree.root for degree in facts.degrees)):
        value = names.get(name)
        names = {**names, **(value if type(value) is dict else stored(value))}
    sizes = {FACTS[name]: n for name, n in names.items() if name in FACTS and type(n) is int and n > 0}
    head_dim = sizes.get("head_dim") or sizes.get("dim", 0) // sizes.get("n_heads", 1)
    statement = around(program.tree(frame.f_code.co_filename), span)[0]
    read = names_in(statement)
    widths = {n for name in read for n in tensor_shape(names.get(name)) or ()}
    for degree in facts.degrees if facts.near else ():
        for fact, head in (("n_kv_heads", "KV head"), ("n_heads", "head")):
            n = sizes.get(fact, 0)
            if degree.axis != "tp" or n % degree.n == 0 or n * head_dim not in widths:
                continue
            what = (
                f"{degree.text} = {degree.n} does not divide {n} {head}s: a rank would have a part of a "
                f"{head}, so no edit of this line is right"
            )
            return what, tuple(_checked(sizes, degree))
    return None


def _checked(sizes: Mapping[str, int], degree: Degree) -> Iterable[str]:
    """What `check` says of this number of heads at this degree."""
    heads = {name: n for name, n in sizes.items() if name in ("n_heads", "n_kv_heads", "dim", "head_dim")}
    try:
        report = check(find_model("llama3-8b").replace(name="your model", **heads), Layout(tp=degree.n))
    except LlamaparError:
        return
    for finding in report.findings:
        if "head" in str(finding):
            yield f"check: {str(finding).splitlines()[0]}"


# -- what the trials say ---------------------------------------------------------------------------


class _Words:
    """An explanation of a search that has ended."""

    def __init__(self, program: Program, search: Attempts, found: Explanation) -> None:
        self.program = program
        self.search = search
        self.found = found
        self.facts = search.facts
        usable = [answer for answer in search.answers if answer.state != DIFFERS]
        self.answers = [answer for answer in usable if answer.edits[0].kind != GATHER]
        self.gathers = [answer for answer in usable if answer.edits[0].kind == GATHER]
        # One process fails at the same line, as it must where the line rests on no degree.
        alike = bool(search.one_process) or not self.facts.near
        proved = any(answer.state == PROVED for answer in search.answers)
        self.is_plain = alike and self.facts.whole and not proved

    def explanation(self) -> Explanation:
        """The answer: proved, by meaning, undecided, or none."""
        chosen = self._chosen()
        verdict = self._verdict(chosen)
        rivals = tuple(self._rivals(chosen))
        more: tuple[str, ...] = ()
        if self.search.left <= 0:
            used = f"the {self.search.seconds:g} s for trials are used up"
            more = (f"{used}: %debug_shapes 20, or seconds=20 of lp.debug, tries longer",)
        if not chosen:
            what = self._no_edit()
            reason = what or self.found.reason
            diagnoses = self.found.diagnoses
            if self.is_plain:
                diagnoses = tuple(each for each in diagnoses if each.parallel is False)
            return replace(
                self.found, verdict=verdict, reason=reason, what=what, diagnoses=diagnoses,
                rivals=rivals, next=more,
            )  # fmt: skip
        best = chosen[0]
        level = Level.POSSIBLE
        if best.state == PROVED:
            level = Level.CERTAIN
        if best.state != PROVED and best.meant and len(chosen) == 1:
            level = Level.LIKELY
        what = self._sentence(chosen, verdict)
        edit = tuple(line for answer in chosen for line in self._diff(answer))
        proof = tuple(self._proof(answer, len(chosen) > 1) for answer in chosen)
        return replace(
            self.found, verdict=verdict, reason=what, what=what, diagnoses=(), edit=edit, proof=proof,
            rivals=rivals, next=more, level=level,
        )  # fmt: skip

    def _chosen(self) -> list[Repair]:
        """The answer; two if nothing separates them; none if no edit is right."""
        if not self.answers:
            return []
        first, *more = self.answers
        if first.state in (PROVED, BIASED):
            return [first]
        # A cut that runs proves little: without a comparison its names must speak for it.
        same = [answer for answer in more if answer.state == first.state and answer.is_slip == first.is_slip]
        if first.state == FURTHER and not first.meant:
            return []
        if first.cost >= MEANINGFUL or (first.is_slip and self.search.one_process == ""):
            return []
        rivals = [answer for answer in same if answer.cost < first.cost + 1 and not first.meant]
        return [first, *rivals[:1]]

    def _verdict(self, chosen: list[Repair]) -> str:
        if self.is_plain:
            return NOT_SHARDING
        if self.search.one_process == "" or (chosen and chosen[0].state == PROVED):
            return SHARDING
        if self.found.verdict == NOT_SHARDING:
            return UNKNOWN
        return self.found.verdict

    def _sentence(self, chosen: list[Repair], verdict: str) -> str:
        if len(chosen) > 1:
            both = " or ".join(answer.edits[0].new for answer in chosen)
            undecided = f"undecided: the line runs with {both}"
            if verdict == NOT_SHARDING:
                return f"Not a sharding problem; {undecided}"
            return f"U{undecided[1:]}"
        edits = chosen[0].edits
        if not chosen[0].is_slip:
            return "; ".join(dict.fromkeys(edit.note for edit in edits))
        instead = " and ".join(f"{edit.new} instead of {edit.old}" for edit in edits)
        known = "No cut of a rank's is proved: "
        if verdict == NOT_SHARDING:
            known = "Not a sharding problem: "
        return f"{known}the line runs with {instead}"

    def _no_edit(self) -> str:
        """What is wrong where no edit is right."""
        wrong = [answer for answer in self.search.answers if answer.state == DIFFERS]
        if self.is_plain:
            plain = "Not a sharding problem: one process fails as well"
            if self.search.tried:
                return f"{plain}, and no likely edit of this line runs"
            return plain
        if not wrong:
            return self._index()
        runs = " and ".join(edit.new for edit in wrong[0].edits)
        return (
            f"no edit of this line is right: with {runs} it runs, but {wrong[0].why}. Either its input was "
            "cut across its parts (then cut each part by itself), or it needs the other ranks' parts"
        )

    def _index(self) -> str:
        """What was found; of an index, also whose it would be by a number of ranks that other cells name."""
        error = self.search.error
        if self.found.what != index_past(error, {}, {}):
            return self.found.what
        degrees = {degree.text: degree.n for degree in self.facts.degrees}
        return index_past(error, degrees, self.program.names)

    def _proof(self, answer: Repair, undecided: bool) -> str:
        """A line that begins with "proved" or "runs"."""
        if answer.state == PROVED:
            return f"proved: {answer.why}"
        words = "runs"
        if answer.state == FURTHER:
            words = f"runs past this line, then {printable(answer.why)[:120]}"
        elif answer.stop:
            words = f"runs up to {answer.stop}"
        why = ""
        if answer.state in (RUNS, BIASED):
            why = answer.why
        if not why:
            why = self.search.one_process or "the line rests on no degree that could be set to 1"
        if self.search.shapes_only:
            why = "shapes only"
        if answer.state == BIASED:
            return f"runs; {why}"
        return f"{words}; not proved: {'undecided, ' if undecided else ''}{printable(why)[:200]}"

    def _rivals(self, chosen: list[Repair]) -> Iterable[str]:
        """What else ran, and what was tried."""
        others = [each for each in self.answers if each not in chosen and each.cost < MEANINGFUL]
        if not chosen or chosen[0].state != PROVED:
            for answer in others[:2]:
                instead = " and ".join(f"{edit.new} for {edit.old}" for edit in answer.edits)
                yield f"{instead} runs past this line" if answer.state == FURTHER else f"{instead} runs too"
        explained = self.found.best is not None and self.found.best.level >= Level.LIKELY
        if self.gathers and not chosen and not explained:
            edit = self.gathers[0].edits[0]
            yield f"{edit.new} in place of {edit.old} runs: gather it over the ranks first"
        count = len(self.search.answers)
        if self.search.tried:
            yield f"{plural(self.search.tried, 'edit')} tried, {count} ran; {_NO_EFFECT}"
        else:
            yield "no edit was tried: nothing on this line can be cut, gathered or exchanged"
        if self.search.shapes_only:
            yield f"tried on shapes alone: {self.search.shapes_only}"

    def _diff(self, answer: Repair) -> Iterable[str]:
        """The lines of the sources that an answer changes: "- old", "+ new"."""
        for file in dict.fromkeys(edit.file for edit in answer.edits):
            old = self.program.source(file).splitlines()
            new = with_edits(
                self.program.source(file), [e for e in answer.edits if e.file == file]
            ).splitlines()
            changed = [(a.strip(), b.strip()) for a, b in zip(old, new, strict=True) if a != b]
            if file in self.program.files:
                yield f"in {file.rpartition('/')[2]}:"
            yield from (f"- {before}" for before, _ in changed)
            yield from (f"+ {after}" for _, after in changed)


def with_edits(source: str, edits: Iterable[Edit]) -> str:
    """A source with edits in it, with brackets where the precedence of operators needs them."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    places = [(span, edit) for edit in edits for span in edit.spans]
    for (first, begin, last, end), edit in sorted(places, key=lambda each: each[0], reverse=True):
        if first != last:
            continue  # An expression over several lines is shown as it is.
        line = lines[first - 1]
        new = edit.new
        if edit.only:
            new = f"{edit.new} if {edit.only} else {edit.old}"
        plain = [*lines]
        safe = [*lines]
        plain[first - 1] = line[:begin] + new.encode() + line[end:]
        safe[first - 1] = line[:begin] + f"({new})".encode() + line[end:]
        lines = safe
        if _same(plain, safe):
            lines = plain
    return b"".join(lines).decode()


def _same(plain: list[bytes], safe: list[bytes]) -> bool:
    """Whether two sources mean the same."""
    try:
        return ast.dump(ast.parse(b"".join(plain))) == ast.dump(ast.parse(b"".join(safe)))
    except SyntaxError:
        return False
