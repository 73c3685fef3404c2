"""`llamapar model`: a model's dimensions and parameters, and the placement of each tensor."""

from __future__ import annotations

from dataclasses import asdict

from llamapar.describe.models import ModelConfig
from llamapar.describe.options import OPTIONS
from llamapar.describe.splits import NO_PADDING
from llamapar.errors import Choice, LayoutError, LlamaparError
from llamapar.place import stages
from llamapar.place.cut import Cut
from llamapar.records.tables import Table, aligned

from .commands import Command, CommandAnswer, Given
from .output import as_text


def _answer(given: Given) -> CommandAnswer:
    model, cut = given.model, given.of(*(name for name in given.about.options if name != "inventory"))
    if cut and not given["inventory"]:
        flag = OPTIONS[next(iter(cut))].flag
        raise LlamaparError(f"{flag} places tensors and needs --inventory", "", [f"--inventory {flag} …"])
    tensors, tables = _inventory(model, given) if given["inventory"] else ([], [])
    dims = asdict(model)
    data = {
        "name": dims.pop("name"),
        **dims,
        "parameters": model.n_params,
        "parameters_active": model.active_params,
        "parameters_per_layer": model.layer_params,
        "parameters_embedding": model.vocab_size * model.dim,
    }
    if tensors:
        data["inventory"] = tensors
    return CommandAnswer(True, lambda: "\n".join([_text(model, dims), *map(as_text, tables)]), lambda: data)


def _text(model: ModelConfig, dims: dict[str, object]) -> str:
    """The dimensions, and the parameters by part of the model."""
    if scaling := model.rope_scaling:
        dims = dims | {"rope_scaling": f"{scaling.kind}, factor {scaling.factor:g}"}
    embedding = f"{model.vocab_size * model.dim:,}"
    rows = [
        *((f"  {name}", _cell(value)) for name, value in dims.items() if name != "experts"),
        ("parameters", f"{model.n_params:,}"),
        ("  layers", f"{model.n_layers} x {model.layer_params:,}"),
        ("  embedding", embedding),
        ("  output head", "the embedding's" if model.tied else embedding),
        ("  final norm", f"{model.final_norm:,}"),
    ]
    if model.experts:
        rows += [("  of a token", f"{model.active_params:,}"), ("not judged", model.unjudged)]
    return "\n".join([model.name, *aligned(rows)])


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        if value:
            return "yes"
        return "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _inventory(model: ModelConfig, given: Given) -> tuple[list[dict[str, object]], list[Table]]:
    """Every tensor as plain values in the order of the forward pass, and the table of them."""
    layout = given.layout
    padding = given["padding"] or NO_PADDING
    staged = stages(model, layout, **given.of("layer_split"))
    if not staged.ok:
        raise LayoutError(staged.reason, f"{staged.layer_split} cannot place them", [Choice.of(pp=1)], "pp")
    placed = Cut(model, layout, padding=padding, layer_split=staged.layer_split)
    tensors: list[dict[str, object]] = [
        {
            "name": p.name,
            "hf_name": p.hf_name,
            "shape": list(p.shape),
            "tp": str(placed.placement(p.key)),
            "local_shape": list(placed.local_shape(p)),
            "stage": placed.stage(p),
        }
        for p in model.parameters()
    ]
    cuts = f"tp={layout.tp} pp={layout.pp} virtual_stages={layout.virtual_stages}"
    title = f"{len(tensors)} tensors over {cuts}, {staged.layer_split}, {padding}"
    columns = ["tensor", "Hugging Face", "shape", "over TP", "on TP rank 0", "stage"]
    cells = [["x".join(map(str, v)) if isinstance(v, list) else v for v in t.values()] for t in tensors]
    return tensors, [Table(title, columns, cells)]


COMMAND = Command(
    "dimensions and exact parameter count of a model; every tensor with --inventory",
    "model",
    "llamapar model llama3.1-405b\n  llamapar model llama3-8b --inventory --tp 8 --pp 4",
    exits="0 found",
    positional=(("model", OPTIONS["model"].help),),
    answer=_answer,
)
