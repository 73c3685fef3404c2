"""A pickle read as data: what it would build, with nothing in it looked up, called or executed.

Python's own unpickler imports and calls what a file names; torch's `weights_only` one still calls what is
on its list (`UntypedStorage(2**40)` allocates) and hashes any tuple a file gives it (nested ones never end).
This machine knows the opcodes that `torch.save` and torch.distributed.checkpoint write (protocols 2 to 5),
keeps classes and functions as names from a list, and calls to them as records. A pickle cannot make it
allocate more than a fixed multiple of the bytes that the file really holds.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from llamapar.errors import CheckpointError, shown

MAX_DIMS = 8
"""Most dims of a tensor."""

MAX_PICKLE = 2**28
"""Bytes of the largest pickle that is read; a tensor of a state dict takes about 150."""

MAX_STEPS = 2**24
"""Opcodes of the longest pickle that is read; a tensor takes about 50, a few seconds are the most."""


class Name:
    """A class or function that a pickle names."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name


class Made:
    """What a pickle would get by calling `name` with `args`, and the state it would then set."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...]):
        self.name = name
        self.args = args
        self.state: Any = None


STORAGE = "a storage"
"""The name of what stands for a persistent id; its args are the id's."""


def load(data: bytes, allowed: Collection[str], where: str, storages: bool = False) -> Any:
    """The value that the pickle `data` holds; classes and functions come as `Name`, calls as `Made`.

    allowed: full names that may occur. where: what to call the file in messages. storages: whether
    persistent ids may occur. An OrderedDict comes as a dict, a torch.Size as a tuple.
    Raises CheckpointError.
    """
    try:
        with uncollected():
            return _run(data, allowed, where, storages)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as problem:
        if isinstance(problem, CheckpointError):
            raise
        raise CheckpointError(
            f"{where}: its pickle is damaged", f"{type(problem).__name__} on the way"
        ) from None


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside: many small objects and no garbage are made, a third faster."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _run(data: bytes, allowed: Collection[str], where: str, storages: bool) -> Any:
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[int, Any] = {}
    at, end = 0, len(data)

    def piece(at: int, size: int) -> bytes:
        if size > end - at:
            raise CheckpointError(
                f"{where}: its pickle is cut off", f"{size} bytes are announced and {end - at} are there"
            )
        return data[at : at + size]

    def named(module: str, name: str) -> Name:
        full = f"{module}.{name}"
        if full not in allowed:
            raise CheckpointError(
                f"{where}: its pickle names {shown(full)}, which no plain checkpoint holds",
                "nothing that a file names is looked up or executed; only tensors, numbers and text are read",
            )
        return Name(full)

    def store(target: Any, keys: list[Any], values: list[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            # only what hashes in constant time and without collisions
            if not (type(key) in (str, Made) or (type(key) is int and abs(key) < 2**32)):
                raise CheckpointError(f"{where}: its pickle has a {type(key).__name__} as a key of a dict")
            if type(target) is not dict:
                raise TypeError
            target[key] = value

    for _ in range(MAX_STEPS):
        op = data[at]
        at += 1
        if op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op == 0x71:  # BINPUT
            memo[data[at]] = stack[-1]
            at += 1
        elif op == 0x72:  # LONG_BINPUT
            memo[int.from_bytes(piece(at, 4), "little")] = stack[-1]
            at += 4
        elif op == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif op == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(piece(at, 4), "little")])
            at += 4
        elif op == 0x4B:  # BININT1
            stack.append(data[at])
            at += 1
        elif op == 0x4D:  # BININT2
            stack.append(int.from_bytes(piece(at, 2), "little"))
            at += 2
        elif op == 0x4A:  # BININT
            stack.append(int.from_bytes(piece(at, 4), "little", signed=True))
            at += 4
        elif op == 0x8A:  # LONG1
            stack.append(int.from_bytes(piece(at + 1, data[at]), "little", signed=True))
            at += 1 + data[at]
        elif op == 0x85:  # TUPLE1
            stack[-1] = (stack[-1],)
        elif op == 0x86:  # TUPLE2
            stack[-2:] = [(stack[-2], stack[-1])]
        elif op == 0x87:  # TUPLE3
            stack[-3:] = [(stack[-3], stack[-2], stack[-1])]
        elif op == 0x28:  # MARK
            marks.append(stack)
            stack = []
        elif op == 0x74:  # TUPLE
            items, stack = stack, marks.pop()
            stack.append(tuple(items))
        elif op in (0x52, 0x81):  # REDUCE, NEWOBJ
            args, function = stack.pop(), stack.pop()
            if type(args) is not tuple or type(function) is not Name:
                raise TypeError
            if function.name == "collections.OrderedDict" and not args:
                stack.append({})
            elif function.name == "torch.Size":
                (sizes,) = args
                if type(sizes) not in (tuple, list) or len(sizes) > MAX_DIMS:
                    raise TypeError
                stack.append(tuple(sizes))
            else:
                stack.append(Made(function.name, args))
        elif op == 0x51:  # BINPERSID
            identity = stack.pop()
            if not storages or type(identity) is not tuple:
                raise CheckpointError(f"{where}: its pickle refers to data outside itself")
            stack.append(Made(STORAGE, identity))
        elif op == 0x75:  # SETITEMS
            items, stack = stack, marks.pop()
            store(stack[-1], items[::2], items[1::2])
        elif op == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            store(stack[-1], [key], [value])
        elif op == 0x62:  # BUILD
            state = stack.pop()
            if type(stack[-1]) is Made:
                stack[-1].state = state
            elif type(stack[-1]) is not dict:  # attributes of an OrderedDict are no part of it
                raise TypeError
        elif op == 0x58:  # BINUNICODE
            text = piece(at + 4, int.from_bytes(piece(at, 4), "little"))
            stack.append(text.decode())
            at += 4 + len(text)
        elif op == 0x8C:  # SHORT_BINUNICODE
            stack.append(piece(at + 1, data[at]).decode())
            at += 1 + data[at]
        elif op == 0x63:  # GLOBAL
            first = data.index(b"\n", at)
            second = data.index(b"\n", first + 1)
            stack.append(named(data[at:first].decode(), data[first + 1 : second].decode()))
            at = second + 1
        elif op == 0x93:  # STACK_GLOBAL
            name, module = stack.pop(), stack.pop()
            if type(name) is not str or type(module) is not str:
                raise TypeError
            stack.append(named(module, name))
        elif op == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif op == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif op == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif op in (0x61, 0x65):  # APPEND, APPENDS
            if op == 0x61:
                items = [stack.pop()]
            else:
                items, stack = stack, marks.pop()
            if type(stack[-1]) is not list:
                raise TypeError
            stack[-1].extend(items)
        elif op in (0x4E, 0x88, 0x89):  # NONE, NEWTRUE, NEWFALSE
            stack.append({0x4E: None, 0x88: True, 0x89: False}[op])
        elif op == 0x47:  # BINFLOAT
            stack.append(struct.unpack(">d", piece(at, 8))[0])
            at += 8
        elif op == 0x95:  # FRAME
            at += 8
        elif op == 0x80:  # PROTO
            at += 1
        elif op == 0x2E:  # STOP
            (value,) = stack
            return value
        else:
            raise CheckpointError(
                f"{where}: its pickle holds opcode {bytes([op])!r}, which torch does not write"
            )
    raise CheckpointError(f"{where}: its pickle takes more than {MAX_STEPS:,} steps")
