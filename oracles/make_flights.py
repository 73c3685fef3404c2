"""flights.jsonl.gz: flight records of hangs that were raised on purpose, on real ranks over gloo.

    python oracles/make_flights.py            # all of them, about ten minutes of two cores
    python oracles/make_flights.py NAME …     # those whose name begins so, kept beside the others

Each case runs a small training step (tensor, context and data parallel collectives, a pipeline of pairs) with
one fault: what, on which rank, before which collective. So the culprit is known from the fault, not from the
dumps. `torch` keeps what torch's own analyzer says of the same dumps, where it says something.
"""

import base64
import contextlib
import gzip
import io
import json
import logging
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "64"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

from fixture import FIXTURES

FILE = FIXTURES / "flights.jsonl.gz"
PATIENCE = 2.5  # seconds after the start at which every rank that lives dumps; a healthy run takes a tenth
TITLES = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
}


@dataclass(frozen=True)
class Case:
    """degrees: axis → ranks, slowest first. fault: its kind; ranks: who has it; at: before which collective.

    groups: made by a DeviceMesh, by new_group with Megatron-LM's descriptions, or without any.
    without, cut: ranks whose dump is lost or cut off. ragged: replicas have batches of other lengths, which
    does no harm. then: a rank that dies at the end of the step in which the fault is.
    """

    name: str
    degrees: tuple[tuple[str, int], ...]
    fault: str
    ranks: tuple[int, ...]
    at: int
    form: str = "json"
    groups: str = "mesh"
    layers: int = 2
    micro_batches: int = 2
    without: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    ragged: bool = False
    then: int | None = None

    @property
    def world(self) -> int:
        return int(torch.tensor([n for _, n in self.degrees]).prod())


def grid_of(degrees: tuple[tuple[str, int], ...]) -> torch.Tensor:
    """The ranks in the form of the degrees."""
    sizes = [n for _, n in degrees]
    return torch.arange(int(torch.tensor(sizes).prod())).view(sizes)


class Died(Exception):
    pass


class Left(Exception):
    """The rank leaves its loop, for its data are at an end."""


class Retried(Exception):
    """The rank gives the step up and begins it again."""


class Rank:
    """One rank of a case: the program, with the fault in it."""

    def __init__(self, case: Case, rank: int, group: dict):
        self.case, self.rank, self.group, self.calls, self.held, self.root = case, rank, group, 0, None, 0
        grid = grid_of(case.degrees)
        place = (grid == rank).nonzero()[0].tolist()
        coord = dict(zip([name for name, _ in case.degrees], place, strict=True))
        self.longer = coord.get("dp", 0) if case.ragged else 0

    def call(self, axis: str, op: str, size: tuple[int, ...]) -> None:
        case = self.case
        if axis not in self.group:
            return
        here = self.rank in case.ranks and self.calls == case.at
        self.calls += 1
        if here and case.fault in (*FAULTS, *FRESH, *LATER):
            self.fail(axis, op, size)
            return
        if case.fault == "slow" and self.rank in case.ranks:
            time.sleep(0.35)
        self.do(axis, op, size)
        if self.held is not None:
            held, self.held = self.held, None
            self.do(*held)

    def do(self, axis: str, op: str, size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        group = self.group[axis]
        x = torch.ones(size, dtype=dtype)
        if op == "all_reduce":
            dist.all_reduce(x, group=group)
        elif op == "all_gather":
            dist.all_gather([torch.ones_like(x) for _ in range(group.size())], x, group=group)
        elif op == "broadcast":
            dist.broadcast(x, dist.get_global_rank(group, self.root), group=group)
        elif op == "reduce_scatter":
            dist.reduce_scatter_tensor(x, torch.ones(size[0] * group.size(), *size[1:]), group=group)
        elif op == "all_gather_into":
            dist.all_gather_into_tensor(torch.ones(size[0] * group.size(), *size[1:]), x, group=group)
        elif op == "all_to_all":
            dist.all_to_all_single(torch.ones_like(x), x, group=group)
        else:
            dist.barrier(group=group)

    def fail(self, axis: str, op: str, size: tuple[int, ...]) -> None:
        """The case's fault in place of a collective, or before it."""
        call = (axis, op, size)
        others = [name for name, n in self.case.degrees if n > 1 and name != axis]
        match self.case.fault:
            case "skip" | "ragged and skips" | "skips, another dies" | "experts":
                return
            case "size" | "shards":
                call = (axis, op, (size[0] + 1, *size[1:]))
            case "operation":
                call = (axis, "all_gather" if op == "all_reduce" else "all_reduce", size)
            case "order":
                self.held = call
                return
            case "group":
                call = (others[0] if others else "world", op, size)
            case "branch":
                self.do("world", "all_reduce", (2,))
            case "death":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raises":
                raise Died
            case "late" | "ragged and late" | "node":
                time.sleep(1000)
            case "dtype":
                self.do(*call, torch.float64)
                return
            case "twice":
                self.do(*call)
            case "saves":
                dist.barrier()  # before its checkpoint, which the others write at another step
            case "leaves" | "replica leaves":
                raise Left
            case "retries":
                raise Retried
            case "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "objects":
                dist.all_gather_object(
                    [None] * dist.get_world_size(), {"loss": 1.0}
                )  # one rank logs with all
            case "tells":
                dist.broadcast_object_list([{"stop": False}], self.rank)
            case "makes a group":
                dist.new_group(list(range(self.case.world)))
            case "root":
                self.root = 1
            case "exits":
                dist.destroy_process_group()
                os._exit(0)
        self.do(*call)
        self.root = 0

    # -- the program -------------------------------------------------------------------------------

    def step(self) -> None:
        case = self.case
        many = case.micro_batches
        if case.fault == "micro-batches" and self.rank in case.ranks:
            many -= 1
        faulty = self.rank in case.ranks
        layers = case.layers - (case.fault == "layers" and faulty)
        if case.fault == "evaluates" and faulty:
            self.blocks(layers)
        for number in range(many):
            into = "_into" if case.fault == "shards" else ""
            self.call("dp", f"all_gather{into}", (3,))  # a shard of the weights, as ZeRO-3 gathers it
            self.hop()
            if case.fault == "experts":
                for axis in ("dp", "tp", "cp"):
                    self.call(axis, "all_to_all", (len(self.group) * 24, 8))
            self.blocks(layers - (case.fault == "drops" and faulty and number == 1))
            self.call("cp", "all_reduce", (6,))
        if self.rank == case.then:
            os.kill(os.getpid(), signal.SIGKILL)
        if case.fault == "not a number" and faulty:
            return
        for bucket in () if case.fault == "overflow" and faulty else (32, 24):
            self.call("dp", "reduce_scatter" if case.fault == "shards" else "all_reduce", (bucket,))
        self.call("world", "all_reduce", (1,))

    def blocks(self, layers: int) -> None:
        for _ in range(layers):
            self.call("tp", "all_gather", (4 + self.longer, 8))
            self.call("cp", "all_gather", (2 + self.longer, 8))
            self.call("tp", "all_reduce", (4 + self.longer, 16))

    def hop(self) -> None:
        """To the next stage. Crossing: the last stage sends back before it takes what is sent to it.

        gloo notes no send, so that stages which cross by sends leave nothing but silence.
        """
        case, last = self.case, self.rank in self.case.ranks
        if case.fault == "crosses":
            for axis in ("back", "pp") if last else ("pp", "back"):
                self.call(axis, "all_reduce", (4, 8))
        elif case.fault == "sends cross":
            peer = dist.get_global_rank(self.group["pp"], 0 if last else 1)
            dist.recv(torch.ones(4, 8), peer)
            dist.send(torch.ones(4, 8), peer)
        else:
            self.call("pp", "broadcast", (4, 8))


FAULTS = ("skip", "size", "operation", "order", "group", "branch", "death", "raises", "late")
"""What a rank does in place of its collective. "slow", "micro-batches" and "crosses" are in the program."""

FRESH = ("dtype", "twice", "saves", "leaves", "retries", "stopped", "ragged and skips", "ragged and late")
FRESH += ("skips, another dies", "node")
ALSO = ("layers", "overflow")
"""Mistakes of other kinds, raised when the analysis was done; those of ALSO are in the program."""

LATER = ("objects", "tells", "makes a group", "root", "exits", "shards", "experts", "replica leaves")
ALSO_LATER = ("evaluates", "drops", "not a number")
"""Mistakes of kinds that neither the analysis nor those before were made with; the last: in the program."""


# -- running ---------------------------------------------------------------------------------------


def _groups(case: Case) -> dict:
    world = {"world": dist.group.WORLD}
    if case.fault == "crosses":
        axis = [name for name, _ in case.degrees].index("pp")
        grid = grid_of(case.degrees).movedim(axis, -1)
        for ranks in grid.reshape(-1, grid.shape[-1]).tolist():
            made = dist.new_group(ranks, group_desc="mesh_pp")
            if dist.get_rank() in ranks:
                world["back"] = made
    names, sizes = [name for name, _ in case.degrees], [n for _, n in case.degrees]
    if case.groups == "mesh":
        mesh = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=tuple(names))
        return world | {name: mesh.get_group(name) for name in names}
    grid = grid_of(case.degrees)
    for i, name in enumerate(names):
        desc = TITLES[name] if case.groups == "megatron" else None
        for ranks in grid.movedim(i, -1).reshape(-1, sizes[i]).tolist():
            made = dist.new_group(ranks, group_desc=desc)
            if dist.get_rank() in ranks:
                world[name] = made
    return world


def _rank(case: Case, rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    store = dist.FileStore(f"{folder}/store", case.world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.world)
    groups = _groups(case)
    for group in groups.values():  # connected before the clock runs
        dist.barrier(group=group)
    dist.barrier()

    def dump() -> None:
        time.sleep(PATIENCE + 0.15 * case.world)
        data = c10d._dump_fr_trace() if case.form == "pickle" else c10d._dump_fr_trace_json()
        data = data.encode() if isinstance(data, str) else data
        Path(f"{folder}/rank_{rank}").write_bytes(data)
        os._exit(0)

    threading.Thread(target=dump, daemon=True).start()
    with contextlib.suppress(Exception):  # a rank whose peer died, or whose sizes gloo refuses, stays
        _healthy(case, rank, groups)
        try:
            Rank(case, rank, groups).step()
        except Left:
            dist.barrier()
        except Retried:
            _healthy(case, rank, groups)
        else:
            if case.fault in ALSO + ALSO_LATER:  # the others go on to the next step
                _healthy(case, rank, groups)
    time.sleep(1000)


def _healthy(case: Case, rank: int, groups: dict) -> None:
    whole = replace(case, fault=case.fault if case.fault in ("slow",) else "none", then=None)
    Rank(whole, rank, groups).step()


def raised(case: Case) -> dict[int, bytes]:
    """The dumps of a case by rank."""
    folder = tempfile.mkdtemp(prefix="flight-")
    ranks = []
    for rank in range(case.world):
        process = os.fork()
        if not process:
            try:
                _rank(case, rank, folder)
            finally:
                os._exit(1)
        ranks.append(process)
    end = time.monotonic() + PATIENCE + 0.15 * case.world + 20
    for process in ranks:
        while not os.waitpid(process, os.WNOHANG)[0]:
            if time.monotonic() > end:  # one that is stopped dumps nothing
                os.kill(process, signal.SIGKILL)
            time.sleep(0.05)
    found = {r: Path(f"{folder}/rank_{r}") for r in range(case.world)}
    dumps = {rank: file.read_bytes() for rank, file in found.items() if file.exists()}
    shutil.rmtree(folder)
    for rank in case.without:
        dumps.pop(rank, None)
    for rank in case.cut:
        dumps[rank] = dumps[rank][: len(dumps[rank]) // 2]
    return dumps


def cases() -> list[Case]:
    """The same ones each time; those called again were raised when the analysis was done."""
    again = _drawn(random.Random(2026), range(1, 3))
    return [
        *_drawn(random.Random(20), range(6)),
        *(replace(case, name=f"again-{case.name}") for case in again),
        *_fresh(random.Random(20261123)),
        *_later(random.Random(7)),
    ]


def _later(draw: random.Random) -> list[Case]:
    """Two of each of the kinds that came last, on four to eight ranks."""
    shapes = [
        (("dp", 2), ("tp", 4)),
        (("dp", 3), ("tp", 2)),
        (("dp", 4), ("tp", 2)),
        (("dp", 2), ("cp", 2), ("tp", 2)),
        (("dp", 6),),
        (("pp", 2), ("dp", 2), ("tp", 2)),
        (("dp", 7),),
    ]
    made = []
    for turn in range(2):
        for number, fault in enumerate([*LATER, *ALSO_LATER]):
            degrees = shapes[(turn * 3 + number * 5) % len(shapes)]
            if fault == "root":  # of the pipeline's broadcasts
                degrees = shapes[5]
            while fault == "replica leaves" and (dict(degrees)["dp"] < 3 or len(degrees) < 2):
                degrees = shapes[(shapes.index(degrees) + 1) % len(shapes)]
            grid = grid_of(degrees)
            rank, at = draw.randrange(grid.numel()), draw.randrange(1, 7)
            ranks = (rank,)
            if fault == "replica leaves":
                ranks = tuple(grid[draw.randrange(len(grid))].flatten().tolist())
            at = {"replica leaves": 0, "shards": 0, "experts": 1, "root": 1}.get(fault, at)
            form, groups = draw.choice(["json", "pickle"]), draw.choice(["mesh", "mesh", "megatron", "none"])
            made.append(Case(f"later-{fault}-{turn}", degrees, fault, ranks, at, form, groups))
    return made


def _fresh(draw: random.Random) -> list[Case]:
    """Two of each of the other kinds, on other layouts."""
    shapes = [
        (("dp", 4), ("pp", 2), ("tp", 2)),
        (("dp", 2), ("tp", 3)),
        (("tp", 8),),
        (("dp", 8), ("tp", 2)),
        (("pp", 2), ("dp", 2), ("tp", 3)),
        (("dp", 5),),
        (("dp", 3), ("cp", 4)),
        (("cp", 2), ("tp", 2)),
        (("dp", 3), ("tp", 4)),
    ]
    replicas = [shape for shape in shapes if dict(shape).get("dp", 0) > 2]
    many = [shape for shape in replicas if len(shape) == 2]
    made = []
    for turn in range(2):
        for number, fault in enumerate([*FRESH, *ALSO]):
            some = replicas if fault.startswith(("ragged", "node", "skips")) else shapes
            some = many if fault == "overflow" else some
            degrees = some[(turn * 4 + number * 5) % len(some)]
            grid = grid_of(degrees)
            rank, at = draw.randrange(grid.numel()), draw.randrange(1, 7)
            form, groups = draw.choice(["json", "pickle"]), draw.choice(["mesh", "mesh", "megatron", "none"])
            ranks: tuple[int, ...] = (rank,)
            if fault in ("overflow", "node"):  # a whole replica, or the ranks of one machine
                place = [name for name, _ in degrees].index("dp")
                chosen = draw.randrange(grid.shape[place])
                ranks = tuple(grid.select(place, chosen).flatten().tolist())
            case = Case(f"fresh-{fault}-{turn}", degrees, fault, ranks, at, form, groups)
            if fault.startswith("skips"):
                case = replace(case, then=(rank + grid.numel() // 2) % grid.numel())
            made.append(replace(case, ragged=fault.startswith("ragged")))
    return made


def _drawn(draw: random.Random, turns: range) -> list[Case]:
    """Faults in turn, the rest drawn."""
    shapes = [
        (("dp", 2), ("tp", 2)),
        (("tp", 4),),
        (("dp", 4),),
        (("dp", 3), ("tp", 2)),
        (("dp", 2), ("tp", 4)),
        (("dp", 2), ("cp", 2), ("tp", 2)),
        (("dp", 4), ("tp", 2)),
        (("dp", 3), ("pp", 2)),
        (("pp", 2), ("dp", 3), ("tp", 2)),
        (("dp", 2), ("pp", 2), ("cp", 2), ("tp", 2)),
    ]
    made = []
    kinds = [kind for kind in FAULTS if kind != "raises"] + ["raises", "slow"]
    for turn in turns:
        for number, fault in enumerate(kinds):
            degrees = shapes[(turn * 7 + number * 3) % len(shapes)]
            rank, at = draw.randrange(grid_of(degrees).numel()), draw.randrange(1, 9)
            form, groups = draw.choice(["json", "pickle"]), draw.choice(["mesh", "mesh", "megatron", "none"])
            made.append(Case(f"{fault}-{turn}", degrees, fault, (rank,), at, form, groups))
    for turn, degrees in enumerate([shapes[3], shapes[6], shapes[8], shapes[2]]):
        sizes = dict(degrees)
        chosen = draw.randrange(sizes["dp"])
        ranks = tuple(grid_of(degrees).select(list(sizes).index("dp"), chosen).flatten().tolist())
        made.append(Case(f"micro-batches-{turn}", degrees, "micro-batches", ranks, 0, groups="mesh"))
    for turn, degrees in enumerate([shapes[7], shapes[8], shapes[7], shapes[8]]):
        stage = grid_of(degrees).select([name for name, _ in degrees].index("pp"), 1).flatten().tolist()
        fault = "crosses" if turn < 3 else "sends cross"
        made.append(Case(f"crosses-{turn}", degrees, fault, tuple(stage[: 12 if turn != 2 else 1]), 0))
    for turn, fault in enumerate(["skip", "size", "late", "group"]):
        case = Case(f"missing-{turn}", shapes[6], fault, (draw.randrange(1, 8),), 2 + turn)
        made.append(replace(case, without=(0,)))
    for turn, fault in enumerate(["skip", "operation", "late", "order"]):
        case = Case(f"truncated-{turn}", shapes[4], fault, (draw.randrange(1, 8),), 1 + turn)
        made.append(replace(case, cut=(0,), form=["json", "pickle"][turn % 2]))
    return made


# -- torch's own analyzer --------------------------------------------------------------------------


def judged(dumps: dict[int, bytes], case: Case) -> str:
    """What torch's analyzer says: the lines of its log that name a collective; "" where it fails.

    It needs each group's ranks, which gloo does not note: they are added from the case."""
    from torch.distributed.flight_recorder.components import builder, config_manager

    details = {}
    for rank, data in dumps.items():
        with contextlib.suppress(Exception):
            value = pickle.loads(data) if case.form == "pickle" else json.loads(data)
            details[str(rank)] = {"rank": rank, "host_name": str(rank), **value}
    names = {}
    for one in details.values():
        for entry in one["entries"]:
            names[tuple(entry["process_group"])] = None
    members = {name: sorted(_members(name, details, case)) for name in names}
    for one in details.values():
        own = {g: r for g, r in members.items() if one["rank"] in r}
        one["pg_config"] = {g[0]: {"name": g[0], "desc": g[1], "ranks": str(r)} for g, r in own.items()}
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger("Flight Recorder")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        args = config_manager.JobConfig().parse_args(["--allow-incomplete-ranks", "none"])
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            builder.build_db(details, args, "2.10")
    except (Exception, SystemExit) as problem:
        text.write(f"{type(problem).__name__}: {problem}")
    finally:
        logger.removeHandler(handler)
    keep = ("Culprit", "collective:", "missing ranks", "group info", "Not all ranks", "Error", "sequence")
    lines = [line.strip() for line in text.getvalue().splitlines()]
    return "\n".join(dict.fromkeys(line[:300] for line in lines if any(word in line for word in keep)))[:1500]


def _members(name: tuple[str, str], details: dict, case: Case) -> set[int]:
    if name[1] == "default_pg":
        return set(range(case.world))
    return {
        d["rank"] for d in details.values() if any(tuple(e["process_group"]) == name for e in d["entries"])
    }


def main() -> None:
    wanted = set(sys.argv[1:])
    kept = {}
    if wanted and FILE.exists():
        rows = map(json.loads, gzip.decompress(FILE.read_bytes()).splitlines())
        kept = {row["name"]: row for row in rows}
    for case in cases():
        if wanted and not case.name.startswith(tuple(wanted)):
            continue
        dumps = raised(case)
        if not dumps:  # gloo ended every rank
            print(case.name, "left no dumps", flush=True)
            continue
        said = judged(dumps, case)
        text = {str(rank): base64.b64encode(data).decode() if case.form == "pickle" else data.decode()
                for rank, data in dumps.items()}  # fmt: skip
        kept[case.name] = {**case.__dict__, "degrees": dict(case.degrees), "dumps": text, "torch": said}
        print(
            case.name,
            case.degrees,
            case.ranks,
            len(dumps),
            "dumps",
            said[:100].replace("\n", " | "),
            flush=True,
        )
    order = [case.name for case in cases() if case.name in kept]
    rows = [json.dumps(kept[name]) for name in order]
    FILE.write_bytes(gzip.compress("\n".join(rows).encode(), 9, mtime=0))
    print(len(rows), "cases,", FILE.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
