"""What a process holds where an error was raised; nothing of the user's is called."""

import linecache
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import llamapar as lp
from llamapar.diagnosis.explanation import Explanation
from llamapar.diagnosis.live_facts import live_facts
from llamapar.spmd.compat import fake_world

ALONE = "one process, torch.distributed not initialised"


def facts_of(fails):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of every kind
        fails()
    found = live_facts(caught.value)
    assert found is not None
    return found


def told(fails):
    """Where it failed, and the operands below the head of their table, as text."""
    found = Explanation("unknown", "x", live=facts_of(fails))
    return [line.removeprefix("where").strip() for line in str(found).splitlines()[1:]]


def rows(fails):
    """Operands of the failing expression: name → shape, dtype, placement and whole shape."""
    operands = facts_of(fails).operands
    cells = {one.name: [f"{list(one.shape)} {one.dtype}", one.placement] for one in operands}
    wholes = {one.name: f"of {list(one.whole)}" if one.whole else "" for one in operands}
    return {name: ", ".join(filter(None, [*row, wholes[name]])) for name, row in cells.items()}


@pytest.fixture
def mesh():
    with fake_world(4, 1):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


# -- the expression and what it names --------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, n), nn.Linear(8, 8)])
        self.by_name = nn.ModuleDict({"wo": nn.Linear(4, 8, bias=False)})
        self.register_buffer("cache", torch.zeros(2, 5))
        self.n = n


def test_the_failing_part_of_a_line_with_its_operands_and_numbers():
    line = test_the_failing_part_of_a_line_with_its_operands_and_numbers.__code__.co_firstlineno + 3
    q, k, scale, size = torch.zeros(2, 8, 16), torch.zeros(2, 8, 12), 0.5, 3
    assert told(lambda: (q * scale).softmax(-1).unflatten(-1, (size, 5)) + k.sum()) == [
        f"test_live_facts.py, line {line}: (q * scale).softmax(-1).unflatten(-1, (size, 5))",
        ALONE,
        "name  on this rank",
        "q     [2, 8, 16] float32",
        "size  3",
    ]
    assert told(checked)[0].endswith(": X.shape[-1] % 8")


class Slots:
    __slots__ = ("empty", "w")


BLOCK, SLOTS, LAYER = Block(), Slots(), nn.Linear(8, 8, bias=False)
SLOTS.w = torch.zeros(2)
ITEMS = {"wq": [torch.zeros(3, 4, dtype=torch.int8)]}
X, Y, HEADS, AT, NONE = torch.zeros(2, 7), torch.zeros(4, 6, 10), (4, 8), 1, 0
PARTS, CACHE, KEYS = Y.chunk(3, 1), torch.zeros(2, 8), torch.zeros(2, 3)
SHARE, HELD = torch.zeros(4096, 64)[:128], {"x": torch.zeros(2, 3)}


def checked():
    if X.shape[-1] % 8:
        raise ValueError("not whole")


def asserted():
    assert X.shape == HEADS, "other"


def stored():
    CACHE[:, 7 : 7 + KEYS.shape[1]] = KEYS


FAILING = [
    (
        lambda: BLOCK.layers[0](X),
        {"BLOCK.layers[0].weight": "[8, 8]", "BLOCK.layers[0].bias": "[8]", "X": "[2, 7]"},
        {},
    ),
    (lambda: X @ BLOCK.by_name["wo"].weight, {"X": "[2, 7]", "BLOCK.by_name['wo'].weight": "[8, 4]"}, {}),
    (
        lambda: BLOCK.cache @ ITEMS["wq"][NONE].float(),
        {"BLOCK.cache": "[2, 5]", "ITEMS['wq'][NONE]": "[3, 4] int8"},
        {"NONE": 0},
    ),
    (lambda: SLOTS.w.view(3), {"SLOTS.w": "[2]"}, {}),
    (lambda: (SLOTS.empty, X.view(3)), {}, {}),  # type: ignore[attr-defined]
    (checked, {"X": "[2, 7]"}, {"X.shape[-1]": 7}),
    (asserted, {"X": "[2, 7]"}, {"HEADS": (4, 8)}),
    (
        lambda: (KEYS @ SHARE.T).view(3, 1, 256),
        {"KEYS": "[2, 3]", "SHARE": "[128, 64], a slice, of [4096, 64]"},
        {},
    ),
    (
        lambda: Y[:, AT : -AT - 1, ::3] @ PARTS[2 * AT - 2][-1, 0],
        {"Y[:, AT:-AT - 1, ::3]": "[4, 3, 4]", "PARTS[2 * AT - 2][-1, 0]": "[10]"},
        {"AT": 1},
    ),
    (stored, {"CACHE": "[2, 8]", "KEYS": "[2, 3]"}, {"KEYS.shape[1]": 3}),  # what is stored into is whole
    (lambda: X.view(PARTS[1 // NONE], 2**70 * 3), {}, {"NONE": 0}),  # what cannot be worked out is left out
    # tensors of a dict are operands where no other is
    (lambda: sum(HELD.values(), "text"), {'HELD["x"]': "[2, 3]"}, {}),  # type: ignore[arg-type]
    (lambda: LAYER.load_state_dict(HELD), {"LAYER.weight": "[8, 8]"}, {}),
]


@pytest.mark.parametrize(("fails", "operands", "numbers"), FAILING)
def test_operands_and_numbers_of_the_failing_expression(fails, operands, numbers):
    assert {name: row.replace(" float32", "") for name, row in rows(fails).items()} == operands
    assert facts_of(fails).numbers == numbers


def test_without_source_the_process_is_told():
    code = compile("x.view(7)", "<nowhere>", "eval")
    found = facts_of(lambda: eval(code, {"x": torch.zeros(6)}))
    assert (found.operands, found.process) == ((), ALONE)
    linecache.cache["<broken>"] = (1, None, ["x.view(7) ((\n"], "<broken>")
    code = compile("x.view(7)", "<broken>", "eval")
    assert told(lambda: eval(code, {"x": torch.zeros(6)})) == ["line 1: x.view(7) ((", ALONE]


def test_an_error_without_frames_has_no_facts():
    assert live_facts(ValueError("shape '[2, 3]' is invalid for input of size 5")) is None


# -- placements, meshes and processes --------------------------------------------------------------


class Attention(nn.Module):
    """A projection whose weight is a DTensor, and a count of heads that nobody divided."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(512, 512, bias=False)

    def forward(self, x):
        heads, size = 32, 16
        return self.proj(x).unflatten(-1, (heads, size))


def test_a_dtensor_beside_a_whole_size_is_the_cause(mesh):
    model, x = parallelize_module(Attention(), mesh, {"proj": ColwiseParallel()}), torch.zeros(2, 24, 512)
    with pytest.raises(RuntimeError, match="unflatten") as caught:
        model(x)
    found = lp.explain(caught.value)
    assert found.live is not None
    whole = "heads·size = 512 is the whole of dim 0 of self.proj.weight, of which a rank holds 128 over tp=4"
    line = f"line {found.live.line}: self.proj(x).unflatten(-1, (heads, size))"
    assert str(found).splitlines() == [
        f"A sharding problem: {whole}",
        f"where  test_live_facts.py, Attention.forward, {line}",
        "       rank 1 of 4, mesh tp=4, a fake process group",
        f"       name              on this rank          {'which is':74}  whole",
        "       self.proj.weight  [128, 512] float32    DTensor, Shard(0) over tp=4, 128 = heads·size/tp"
        " = 512/4, 512 = heads·size  [512, 512]",
        "       x                 [2, 24, 512] float32  512 = heads·size",
        "       heads             32",
        "       size              16",
        "try    write heads // 4 = 8",
        "why    128·4 = 512",
        "sure   likely",
        "source the failing frame: tp=4",
    ]
    assert found.best is not None
    assert found.best.fixes == ("write heads // 4 = 8",)
    assert found.as_dict()["operands"][0]["name"] == "self.proj.weight"


def test_a_dtensor_is_read_on_every_axis():
    with fake_world(8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        w = distribute_tensor(torch.zeros(16, 8), mesh, [Shard(1), Shard(0)])
        assert rows(lambda: w.view(7)) == {
            "w": "[4, 4] float32, DTensor, Shard(1) over dp=2, Shard(0) over tp=4, of [16, 8]"
        }
        assert facts_of(lambda: w.view(7)).process == "rank 0 of 8, mesh dp=2 tp=4, a fake process group"
        assert facts_of(lambda: w.view(7)).facts == {"dp": 2, "tp": 4}


@pytest.mark.parametrize("name", ["tp", "tp_size", "world_size", "n_ranks", "cp", "num_gpus"])
def test_a_degree_among_the_names_leaves_the_verdict_to_the_words(name):
    space = {"x": torch.zeros(6)}
    source = f"def f(x, {name}):\n    return x.view(7, {name})\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(True), "<cell>")
    exec(compile(source, "<cell>", "exec"), space)
    assert not facts_of(lambda: space["f"](space["x"], 4)).alone
    assert facts_of(lambda: space["f"](space["x"], 1)).alone
    space[name] = 4  # a notebook's, perhaps of another cell
    assert not facts_of(lambda: space["f"](space["x"], 1)).alone


def test_a_number_of_ranks_in_an_object_of_the_frames_counts_too():
    x = torch.zeros(6)

    def outer(layout):
        x.view(7)

    assert not facts_of(lambda: outer(SimpleNamespace(tp=1, cp=4))).alone
    assert facts_of(lambda: outer(SimpleNamespace(tp=1, cp=1))).alone
    assert not facts_of(lambda: (KEYS @ SHARE.T).view(3, 1, 256)).alone  # nor where a slice was cut by hand


def test_a_rank_by_the_environment_is_no_lone_process(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    x = torch.zeros(6)
    assert facts_of(lambda: x.view(7)).process == (
        "rank 3 of 8 by its environment, torch.distributed not initialised"
    )
    assert not facts_of(lambda: x.view(7)).alone


def test_a_config_and_a_model_name_sizes():
    sizes = dict(num_attention_heads=32, hidden_size=4096, num_key_value_heads=8, vocab_size=128256)
    config = SimpleNamespace(**sizes, name="x")
    w, x = (torch.empty(shape, device="meta") for shape in ((4096, 128256), (2, 4000)))

    def with_config(config):
        x @ w

    found = facts_of(lambda: with_config(config))
    assert found.facts == {"n_heads": 32, "dim": 4096, "n_kv_heads": 8, "vocab_size": 128256}
    assert [row[2] for row in found.rows()] == ["", "4096 = dim, 128256 = vocab_size"]
    found = facts_of(lambda: with_config(lp.model("llama3-8b")))
    assert found.facts["model"] == lp.model("llama3-8b")
    assert "4096 = dim" in [*found.rows()][1][2]


def test_a_size_has_one_name_or_none():
    x, rows_, cols = torch.zeros(6, 40), 5, 8

    def f(n_heads, head_dim, width, **others):
        _, i, dp_rank = 6, 6, 6  # None of these is a size.
        x.view(rows_, cols, _, i, dp_rank)

    assert next(facts_of(lambda: f(5, 8, 40)).rows())[2] == ""  # The width, or the heads' columns?
    assert next(facts_of(lambda: f(5, 8, 41)).rows())[2] == "40 = n_heads·head_dim"


# -- nothing of the user's is called ----------------------------------------------------------------


class Called(BaseException):
    """What a user's code raises here; nothing may swallow it."""


def refuses(*args, **more):
    raise Called


def refusing(base, names, **more):
    """A class of which none of these may be called or read."""
    own = {f"__{name}__": refuses for name in names.split()} | more
    return type("Hostile", (base,), own)


HostileMeta = refusing(type, "instancecheck subclasscheck getattribute eq hash")
NEVER = "getattr getattribute repr str eq hash bool len iter format index int getitem"
READ = dict.fromkeys(("__class__", "shape", "dtype"), property(refuses))
Hostile = refusing(object, NEVER, __slots__=("__dict__", "w"), **READ)
OwnDict = refusing(object, "", __dict__=property(refuses))
HostileTensor = refusing(torch.Tensor, "torch_function repr", shape=property(refuses))
HostileDispatch = refusing(torch.Tensor, "", __torch_dispatch__=classmethod(refuses))
HostileInt = refusing(int, "index int repr eq hash gt")
HostileList = refusing(list, "iter getitem len")


class HostileModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 3)

    __getattr__ = refuses  # type: ignore[assignment]
    weight = property(refuses)


def test_nothing_of_the_users_is_called():
    hostile, own, module = Hostile(), OwnDict(), HostileModule()
    tensor = torch.zeros(6).as_subclass(HostileTensor)
    dispatch = torch.Tensor._make_subclass(HostileDispatch, torch.zeros(6))
    number, numbers, kind = HostileInt(3), HostileList([1, 2]), HostileMeta("Kind", (), {})
    made = object.__new__(kind)
    x = torch.zeros(6)

    def fails(self):
        x.view(
            7,
            lambda: (hostile.w, hostile.shape, own.w, module.inner, module.weight, tensor.shape, dispatch,
                     number, numbers, numbers[0], kind.w, made, made.w, self.w, hostile[number]),
        )  # fmt: skip

    for holder in (hostile, own, module, number, numbers, made):
        found = facts_of(lambda holder=holder: fails(holder))  # type: ignore[misc]
        names = {operand.name: operand.placement for operand in found.operands}
        assert names == {
            "x": "", "module.inner.weight": "", "module.inner.bias": "", "tensor": "",
            "dispatch": "a class with operations of its own: not read",
        }  # fmt: skip
        assert found.numbers == {}
        list(found.rows())


def test_markup_and_control_characters_stay_text():
    w = {"<b>\x1b": torch.zeros(6)}
    found = Explanation("unknown", "x", live=facts_of(lambda: w["<b>\x1b"].view(7)))
    assert "<b>\x1b" not in found._repr_html_()
    assert "\x1b" not in str(found)


def test_many_operands_are_counted():
    tensors = [torch.zeros(n + 1) for n in range(30)]
    a, b, c, d, e, f, g, h = tensors[:8]
    x = torch.zeros(6)
    found = facts_of(lambda: x.view(7, a, b, c, d, e, f, g, h))
    assert [row[0] for row in found.rows()][:9] == [*"xabcdefgh"]


# -- what is worked out ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [None, 9, torch.tensor([1]), [0, 1], slice(None, None, -1), slice(HostileInt(0), 2), (0, 0, 0), True],
)
def test_an_index_of_another_kind_leaves_the_tensor(index):
    x, other = torch.zeros(4, 6), torch.zeros(5, 7, 3)

    def fails():
        torch.mm(x[index], other)

    assert rows(fails)["x"] == "[4, 6] float32"
