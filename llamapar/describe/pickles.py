"""Reading a pickle as data: what it would build, with nothing looked up, called or executed.

Python's own unpickler imports and calls what a file names. torch's `weights_only` still calls what is on its
list (`UntypedStorage(2**40)` allocates) and hashes any tuple that a file gives it (nested ones never end).
Here a first pass accepts only the opcodes that `torch.save` and torch's flight recorder write (protocols
2 to 5), each within the file. Then Python's unpickler builds the value, with names instead of classes and
functions, and records instead of calls. A pickle cannot make it allocate more than a fixed multiple of the
bytes that the file really holds.
"""

from __future__ import annotations

import gc
import io
import pickle
import pickletools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llamapar.errors import CheckpointError, shown

MAX_DIMS = 8
"""Most dims that a tensor may have."""

MAX_PICKLE = 2**28
"""Largest pickle that is read, in bytes; a tensor of a state dict takes about 150."""

MAX_STEPS = 2**23
"""Most opcodes that are read, some seconds of work; a tensor takes about 50."""

MAX_KEY = 2**32
"""Integer keys of a dict must be smaller than this, so that no two have the same hash."""

STORAGE = "a storage"
"""The name of a `PickledCall` that stands for a persistent id; its args are the id's."""

# -- what is built ---------------------------------------------------------------------------------


class PickledCall:
    """A call that the pickle asks for: `name`, `args`, and the state that it would set afterwards."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...]):
        self.name = name
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class BadKey(Exception):
    """A dict key that could take unbounded time to hash; the message is its type."""


class Dict(dict[Any, Any]):
    """A dict that accepts only keys that hash in constant time and without collisions."""

    __slots__ = ()

    def __setitem__(self, key: object, value: object) -> None:
        if not (type(key) in (str, PickledCall) or (type(key) is int and abs(key) < MAX_KEY)):
            raise BadKey(type(key).__name__)
        super().__setitem__(key, value)

    def __setstate__(self, state: object) -> None:
        """Ignores attributes of an OrderedDict, which are not part of its items."""


class Name:
    """A class or function that a pickle names; calling it makes a `PickledCall`."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __call__(self, *args: Any) -> PickledCall | Dict | tuple[Any, ...]:
        if self.name == "collections.OrderedDict" and not args:
            return Dict()
        # A storage is named, never called: torch would allocate whatever the call asks for.
        if self.name.endswith("Storage"):
            raise TypeError
        if self.name != "torch.Size":
            return PickledCall(self.name, args)
        (sizes,) = args
        if type(sizes) not in (tuple, list) or len(sizes) > MAX_DIMS:
            raise TypeError
        return tuple(sizes)

    def __setstate__(self, state: object) -> None:
        raise TypeError


class _NameReader(pickle.Unpickler):
    """Python's unpickler, which receives a `Name` for whatever it looks up."""

    def __init__(self, data: bytes, allowed: Collection[str], where: str, storages: bool):
        super().__init__(io.BytesIO(data))
        self.allowed = allowed
        self.where = where
        self.storages = storages

    def find_class(self, module: str, name: str) -> Name:
        # Nothing is imported: the name alone goes on, and only if it is on the list.
        full = f"{module}.{name}"
        if full not in self.allowed:
            raise CheckpointError(
                f"{self.where}: its pickle names {shown(full)}, which no plain checkpoint holds",
                "nothing that a file names is looked up or executed; only tensors, numbers and text are read",
            )
        return Name(full)

    def persistent_load(self, identity: object) -> Dict | PickledCall | list[object]:
        # `_plain` writes this in place of EMPTY_DICT, so that every dict of the pickle is one that checks
        # its keys.
        if identity is None:
            return Dict()
        if type(identity) is not tuple:
            raise _outside(self.where)
        if self.storages:
            return PickledCall(STORAGE, identity)
        return list(identity)


def load_pickle(
    data: bytes, allowed: Collection[str], where: str, storages: bool = False, tuples: bool = True
) -> Any:
    """The value of the pickle `data`, with classes and functions as `Name` and calls as `PickledCall`.

    allowed: full names that may occur. where: what to call the file in messages. storages: whether persistent
    ids may occur. tuples: keep tuples; without storages False gives lists, which cannot be hashed by mistake.
    An OrderedDict becomes a dict, a torch.Size a tuple. Raises CheckpointError.
    """
    damaged = pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError
    try:
        with uncollected():
            plain = _plain(data, where, storages, _INSTEAD if tuples else _INSTEAD | _LISTS)
            return _NameReader(plain, allowed, where, storages).load()
    except CheckpointError:
        raise
    except BadKey as kind:
        raise CheckpointError(f"{where}: its pickle has a {kind} as a key of a dict") from None
    except damaged as problem:
        raise CheckpointError(
            f"{where}: its pickle is damaged", f"{type(problem).__name__} on the way"
        ) from None


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside: many small objects are made a third faster, and none is garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


# -- the opcodes -----------------------------------------------------------------------------------

_WRITTEN = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
    BINUNICODE SHORT_BINUNICODE EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS
    EMPTY_DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD BINPERSID
    MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET
"""
WRITTEN = frozenset(_WRITTEN.split())
"""Opcodes that torch writes, by pickletools' names."""

_INSTEAD = {
    "EMPTY_DICT": pickle.NONE + pickle.BINPERSID,  # asked for, so that it is a `Dict`
    "NEWOBJ": pickle.REDUCE,  # a `Name` is called like a function
    "FRAME": b"",  # one frame is put around the whole
}
_LISTS = {name: getattr(pickle, name) + pickle.BINPERSID for name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")}


def _plain(data: bytes, where: str, storages: bool, instead: Mapping[str, bytes]) -> bytes:
    """The pickle rewritten with only opcodes that are safe for Python's unpickler.

    pickletools reads the opcodes, executes nothing, and raises ValueError where an argument is cut off.
    """
    body = bytearray()
    copied = at = 0
    for step, (opcode, argument, place) in enumerate(pickletools.genops(data)):
        at = place or 0
        name = opcode.name
        # A pickle of a few bytes can refer to large values again and again; the number of its steps bounds
        # the work.
        if step == MAX_STEPS:
            raise CheckpointError(f"{where}: its pickle takes more than {MAX_STEPS:,} steps")
        if name not in WRITTEN:
            code = opcode.code.encode("latin-1")
            raise CheckpointError(f"{where}: its pickle holds opcode {code!r}, which torch does not write")
        if name == "BINPERSID" and not storages:
            raise _outside(where)
        if isinstance(argument, str):
            argument.encode()  # strictly: the unpickler lets halves of surrogate pairs pass
        elif argument and name.endswith("BINPUT") and argument > at:
            # the unpickler keeps a list up to the largest index
            raise CheckpointError(f"{where}: its pickle is damaged", "it numbers a value beyond its length")
        if name in instead:
            body += data[copied:at] + instead[name]
            copied = at + 1
            if opcode.arg:
                copied += opcode.arg.n
    body += data[copied : at + 1]
    return pickle.FRAME + len(body).to_bytes(8, "little") + body


def _outside(where: str) -> CheckpointError:
    return CheckpointError(f"{where}: its pickle refers to data outside itself")
