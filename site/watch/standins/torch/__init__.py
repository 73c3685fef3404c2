"""A stand-in of torch for the page: what llamapar's programs, and `lp.watch` around them, call of it.

Tensors are lists of Python numbers, of one rank or of all; only the forward is there. A call that is not here
says so, and that JupyterLab has it. The page's Python alone imports this: it has no torch.
"""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

from . import groups
from .dispatch import Operator, TorchDispatchMode, tree_leaves, tree_map_only
from .random import Generator
from .storage import DType as dtype
from .storage import NotHere, Size, bfloat16, complex128, float16, float32, float64, int32, int64, uint8
from .storage import bool_ as bool
from .tensors import (
    CALLED,
    KERNEL,
    Device,
    LocalTensor,
    Tensor,
    arange,
    eye,
    full,
    full_like,
    ones,
    ones_like,
    promote_types,
    randint,
    randn,
    tensor,
    zeros,
    zeros_like,
)

__version__ = "2.13.0+page"
inf, nan, pi = math.inf, math.nan, math.pi
double, float, long = float64, float32, int64
device = Device
contiguous_format = preserve_format = None
SymInt = groups.SymInt
empty, no_grad, set_num_threads = zeros, nullcontext, lambda n: None
_METHODS = ("getitem", "setitem", "copy_", "lerp_", "pad", "embedding", "one_hot", "to", KERNEL)
globals().update({name: called for name, called in CALLED.items() if name not in _METHODS})


class ScriptObject:
    """No group is one here."""


class UntypedStorage:
    """No tensor's numbers are in one here."""


def get_num_threads() -> int:
    return 1


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotHere(f"torch.{name}")


# -- autograd, of which there is the forward ---------------------------------------------------


class _Context:
    """What a Function keeps for its backward, which never comes."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        pass


class _Function:
    @classmethod
    def apply(cls, *args):
        return cls.forward(_Context(), *args)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = x @ weight.mT
    return y if bias is None else y + bias


# -- the names of modules ----------------------------------------------------------------------


def _module(name: str, **names: object) -> ModuleType:
    """A module of torch's, found where it is imported from; its other names are not here."""
    made = sys.modules[f"{__name__}.{name}"] = ModuleType(f"{__name__}.{name}")
    vars(made).update(names)

    def missing(call: str) -> object:
        if call.startswith("__"):
            raise AttributeError(call)
        raise NotHere(f"torch.{name}.{call}")

    made.__getattr__ = missing
    owner, _, last = name.rpartition(".")
    if owner:
        setattr(sys.modules[f"{__name__}.{owner}"], last, made)
    else:
        globals()[last] = made
    return made


_of_f = ("silu", "relu", "softmax", "embedding", "pad", "one_hot", "sigmoid")
_c10d = SimpleNamespace(
    _world=SimpleNamespace(pg_map=groups.GROUPS), _resolve_process_group=groups.GROUPS.__getitem__
)
_of_dist = ("ProcessGroup", "group", "init_process_group", "destroy_process_group", "is_initialized")
_of_dist += ("get_rank", "get_world_size", "new_group", "get_process_group_ranks")
_of_local = ("LocalIntNode", "LocalTensorMode", "enabled_local_tensor_mode")
_NOBODY = type("Nobody", (), {})

_module("_C", _current_graph_task_id=lambda: -1)
_module("ops", _c10d_functional=SimpleNamespace(**groups.COLLECTIVES))
_module("ops.aten", **{KERNEL: CALLED[KERNEL]})
_module("_ops", OpOverload=Operator)
_module("linalg", **{name: CALLED[name] for name in ("solve_triangular", "vector_norm")})
_module("nn", Module=_NOBODY)
_module("nn.functional", linear=_linear, **{name: CALLED[name] for name in _of_f})
_module("overrides", TorchFunctionMode=nullcontext)
_module("autograd", Function=_Function)
_module("autograd.function", once_differentiable=lambda function: function)
_module("autograd.graph", saved_tensors_hooks=lambda pack, unpack: nullcontext())
_module("utils")
_module("utils._python_dispatch", TorchDispatchMode=TorchDispatchMode)
_module("utils.hooks", RemovableHandle=_NOBODY)
_module("utils._pytree", tree_leaves=tree_leaves, tree_map_only=tree_map_only)
_module("multiprocessing")
_module("multiprocessing.reductions", StorageWeakRef=id)
_module("testing")
_module("testing._internal")
_module("testing._internal.distributed")
_module("testing._internal.distributed.fake_pg", FakeStore=_NOBODY)
_module("distributed", distributed_c10d=_c10d, **{name: getattr(groups, name) for name in _of_dist})
_module("distributed.device_mesh", DeviceMesh=groups.DeviceMesh)
_module("distributed._functional_collectives", AsyncCollectiveTensor=_NOBODY)
_module("fx")
_module("fx.experimental")
_module("fx.experimental._constant_symnode", ConstantIntNode=_NOBODY)
_module(
    "distributed._local_tensor",
    LocalTensor=LocalTensor,
    return_and_correct_aliasing=None,
    _c10d=SimpleNamespace(_local_all_gather_=None),
    **{name: getattr(groups, name) for name in _of_local},
)
