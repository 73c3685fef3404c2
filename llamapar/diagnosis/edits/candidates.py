"""Edits of a failing statement, the cheapest and most meaningful first.

A size is divided by a degree, a tensor is replaced by this rank's part of it, or a slip is undone: another
name, another axis, a transpose, a shift by one. What has a meaning is kept to it by its cost: a head is not
cut, what is cut already is not cut again, and a batch is no count of heads.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from llamapar.records.frames import MISSING, Held, stored, tensor_shape, value_of

from .degrees import AXIS, RATIO, Degree, named_degree, own_rank
from .program import Program, Span, span_of

SIZE, PART, GATHER, SLIP, WATCH = "size", "part", "gather", "slip", "watch"
"""Kinds: a size // degree, a tensor's part, all ranks' parts, an edit without a degree; and no
edit, but the value of the failing expression handed to `SEE`."""

SEE = "__see__"

CUTS = (SIZE, PART)

_UNITS = {
    "tp": re.compile(r"head|kv|hidden|ffn|inter|mlp|vocab|rep|group|rows|\b[HKh]\b"),
    "cp": re.compile(r"seq|len|ctx|tok|pos|\b[sStT]\b"),
    "dp": re.compile(r"batch|bsz|\b[bB]\b"),
    "pp": re.compile(r"layer|depth|block"),
    "ep": re.compile(r"expert"),
}
"""Axis → names of what it cuts."""

_HEAD_DIM = re.compile(r"head_?dim|dim_head|d_head|head_size|\bhd\b|\b[dD]_?[kv]?\b")
_LOCAL = re.compile(r"local|per_rank|_part\b|shard")
_TAKES_AXES = re.compile(
    r"(cat|stack|concat|transpose|swapaxes|permute|chunk|split|softmax|sum|mean|(un)?squeeze|(un)?flatten|size"
    r"|narrow|unbind|select|gather|interleave|argmax|max|movedim)$"
)
_AXES = (0, 1, 2, 3, -1, -2)
_SLIPS = 12
"""Other names that are tried for one name, at most."""

# Costs order the trials: below 4 an edit has a meaning of its own.
COST = {SIZE: 1.0, PART: 2.0, SLIP: 3.0, GATHER: 5.0}
AGAINST_MEANING = 3.0
_UNSEEN = 1.5
"""What it costs that the code there does not know the degree by its name."""


@dataclass(frozen=True)
class Edit:
    """One expression replaced. spans: its places in `file`. run: what a trial executes; _deg_ and _rank_
    stand for the degree and the rank. meant: whether the name says that this axis cuts it. only: a condition,
    for one pass of a loop.
    """

    file: str
    spans: tuple[Span, ...]
    old: str
    new: str
    kind: str
    degree: Degree | None
    cost: float
    run: str
    rank: int = 0
    meant: bool = False
    note: str = ""
    only: str = ""


def is_local(name: str, program: Program, axis: str) -> bool:
    """Whether a name is made with the degree already: its assignment, or what that reads, names it."""
    if _LOCAL.search(name):
        return True
    names = {name}
    for _ in range(3):  # As far as three assignments back.
        for target, value in program.assigned:
            if target in names:
                inside = list(ast.walk(value))
                degrees = [node for node in inside if named_degree(node)]
                words = (getattr(node, "id", getattr(node, "attr", "")) for node in degrees)
                if any(AXIS.get(word) in (axis, None) for word in words):
                    return True
                names |= {node.id for node in inside if isinstance(node, ast.Name)}
    return False


def _is(degree: Degree) -> str:
    if degree.text.isdigit():
        return f"{degree.n} ranks"
    return f"{degree.text} = {degree.n}"


class Candidates:
    """The edits of one part of a statement. names: what its frame sees. far: distance from the failure."""

    def __init__(
        self,
        program: Program,
        file: str,
        site: ast.AST,
        names: Mapping[str, Held],
        degrees: list[Degree],
        far: float = 0.0,
    ) -> None:
        self.program = program
        self.file = file
        self.site = site
        self.names = names
        self.degrees = degrees
        self.far = far
        self.edits: list[Edit] = []
        self.groups: dict[str, list[ast.expr]] = {}
        for node in ast.walk(site):
            if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None), ast.Load | None):
                self.groups.setdefault(ast.unparse(node), []).append(node)
        self.calls = [node for node in ast.walk(site) if isinstance(node, ast.Call)]
        self.axes = self._axes()
        self.text = ast.unparse(site)

    def _axes(self) -> set[int]:
        """The nodes that may be numbers of axes or indices."""
        found = set()
        for call in self.calls:
            if _TAKES_AXES.search(ast.unparse(call.func)):
                found |= {id(argument) for argument in call.args}
                found |= {id(keyword.value) for keyword in call.keywords}
        found |= {id(node.slice) for node in ast.walk(self.site) if isinstance(node, ast.Subscript)}
        return found

    def all(self) -> list[Edit]:
        """All edits, the cheapest first."""
        for text, nodes in self.groups.items():
            value = value_of(nodes[0], self.names)
            if isinstance(nodes[0], ast.BinOp):
                if ast.unparse(nodes[0].right) == "1":
                    self._slip(nodes, text, ast.unparse(nodes[0].left), -0.5)
            elif value is MISSING and isinstance(nodes[0], ast.Name):
                self._size(text, nodes, 0)  # A parameter of a call that has ended, as of __init__.
            elif type(value) is int:
                if value > 1:
                    self._size(text, nodes, value)
                self._other_number(text, nodes, value)
            elif (shape := tensor_shape(value)) is not None:
                self._part(text, nodes, shape)
                self._other_tensor(text, nodes, shape)
            if isinstance(nodes[0], ast.Attribute) and nodes[0].attr in ("T", "mT"):
                self._slip(nodes, text, ast.unparse(nodes[0].value), -0.5)
            if isinstance(nodes[0], ast.Attribute) and nodes[0].attr == "view":
                plain = f"{ast.unparse(nodes[0].value)}.reshape"
                # Of a tensor that can be viewed it is the same, so where it runs, strides were wrong.
                self._slip(nodes, text, plain, -2)
        return sorted(self.edits, key=lambda edit: edit.cost)

    def _add(
        self,
        nodes: list[ast.expr],
        old: str,
        new: str,
        kind: str,
        degree: Degree | None,
        cost: float,
        run: str = "",
        meant: bool = False,
        note: str = "",
    ) -> None:
        """Add an edit of all places of an expression; of a size or a slip also one of each place alone."""
        word, rank = own_rank(degree.axis if degree else "", self.names)
        if degree and degree.root not in self.names:
            cost += _UNSEEN
        run = run or new
        new = new.replace("_rank_", word)
        places = [nodes]
        if len(nodes) > 1 and kind in (SIZE, SLIP):
            places += [[node] for node in nodes]
        for one in places:
            spans = tuple(span_of(node) for node in one)
            total = cost + self.far + (1.0 if one is not nodes else 0.0)
            self.edits.append(
                Edit(self.file, spans, old, new, kind, degree, total, run, rank, meant and not self.far, note)
            )

    def _slip(
        self, nodes: list[ast.expr], old: str, new: str, more: float = 0.0, meant: bool = False
    ) -> None:
        """Add an edit without a degree. more: what it costs beyond a slip that is as likely as others."""
        self._add(nodes, old, new, SLIP, None, COST[SLIP] + more, meant=meant)

    def _fit(self, name: str, degree: Degree) -> tuple[float, bool]:
        """What an edit costs by the meaning of a name, and whether the name speaks for the axis."""
        own = _UNITS.get(degree.axis)
        if degree.axis == RATIO:
            return 1.5, False
        local = bool(name) and is_local(name, self.program, degree.axis)
        if own is not None and own.search(name):
            if local:
                return AGAINST_MEANING, False
            return 0.0, True
        other = any(unit.search(name) for unit in _UNITS.values())
        return (1.0 if other else 0.5) + (AGAINST_MEANING if local else 0.0), False

    def _size(self, text: str, nodes: list[ast.expr], n: int) -> None:
        """A size of which a rank has its part: n_heads // tp."""
        name = text
        if isinstance(nodes[0], ast.Constant):
            name = ""
        if named_degree(nodes[0]) or (self.far >= 1 and not name):
            return
        for degree in self.degrees:
            if n % degree.n or text == degree.text:
                continue
            cost, meant = self._fit(name, degree)
            if not n and not meant:  # Not even whether it is a size is known.
                continue
            if _HEAD_DIM.search(name):
                cost = cost + 2 * AGAINST_MEANING
                meant = False
            cost += COST[SIZE] if name else COST[SIZE] + 2
            new = f"{text} // {degree.text}"
            run = f"{text} // _deg_"
            sizes = text
            if n and name:
                sizes = f"{text} = {n}"
            part = n // degree.n or "its part"
            note = f"{sizes} is all of them, and this rank has {part} ({_is(degree)})"
            self._add(nodes, text, new, SIZE, degree, cost, run, meant, note)

    def _part(self, text: str, nodes: list[ast.expr], shape: tuple[int, ...]) -> None:
        """This rank's part of a tensor, or the parts of all ranks."""
        stored_into = {
            ast.unparse(node.value)
            for node in ast.walk(self.site)
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        }
        for degree in self.degrees:
            cost, meant = self._fit(text, degree)
            cost = COST[PART] + 0.6 * cost + (2.5 if text in stored_into else 0.0)
            for dim, n in enumerate(shape):
                if n and n % degree.n == 0:
                    new = f"{text}.chunk({degree.text}, {dim})[_rank_]"
                    run = f"{text}.chunk(_deg_, {dim})[_rank_]"
                    part = f"this rank's {n // degree.n} of {n} in dim {dim} ({_is(degree)})"
                    note = f"{text} is whole, {list(shape)}, and the line needs {part}"
                    self._add(nodes, text, new, PART, degree, cost, run, meant, note)
                # torch.cat of meta tensors would import dynamo in every child.
                times = ", ".join("_deg_" if each == dim else "1" for each in range(len(shape)))
                gathered = f"{text}.repeat({times})"
                cost_of_all = COST[GATHER] + dim / 10
                everything = f"all_gather({text}, {dim})"
                self._add(nodes, text, everything, GATHER, degree, cost_of_all, gathered)

    def _other_number(self, text: str, nodes: list[ast.expr], n: int) -> None:
        """A slip: another name of a size, or another axis."""
        node = nodes[0]
        if isinstance(node, ast.Constant):
            if abs(n) <= 4 and id(node) in self.axes and self.far < 1:
                for axis in _AXES:
                    if axis != n:
                        self._slip(nodes[:1], text, str(axis), 1 if axis < 0 else 0)
            return
        if named_degree(node):
            return
        prefix = ""
        pool = self.names
        if isinstance(node, ast.Attribute):
            prefix = f"{ast.unparse(node.value)}."
            pool = stored(value_of(node.value, self.names))
        elif not isinstance(node, ast.Name):
            return
        others = [
            name
            for name, size in pool.items()
            if type(size) is int and size > 1 and size != n and name not in AXIS and not name.startswith("_")
        ]
        for other in others[:_SLIPS]:
            self._slip(nodes, text, prefix + other)

    def _other_tensor(self, text: str, nodes: list[ast.expr], shape: tuple[int, ...]) -> None:
        """A slip: a transpose, two axes swapped, an axis added, a shift by one, another tensor."""
        if len(shape) == 2:
            self._slip(nodes, text, f"{text}.T", -0.5)
        else:
            for one, other in itertools.combinations(range(len(shape)), 2):
                self._slip(nodes, text, f"{text}.transpose({one}, {other})", 0.5 if one != 1 else 0)
        forms = ("[:, None]", "[..., None]", "[None]", "[:, None, None]")
        for number, added in enumerate(forms if len(shape) > 1 else forms[::2]):
            self._slip(nodes, text, text + added, number / 4)
        # Beside a part that lacks its last token, the other part lacks its first.
        shifts = []
        if len(shape) > 1:
            shifts = ["[:, 1:]", "[:, :-1]"]
        if shape:
            shifts += ["[1:]", "[:-1]"]
        for shift in shifts:
            partner = shift.replace("1:", ":-1") if "-1" not in shift else shift.replace(":-1", "1:")
            beside = partner in self.text and text + partner not in self.text
            self._slip(nodes, text, text + shift, -0.6 if beside else 1.2, beside)
