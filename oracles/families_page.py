"""docs/families.md from families.toml and the survey of families.json; make_families.py writes it."""

from typing import Any

from llamapar.describe.families import FAMILIES, Family

HEAD = """# Families of models

Which models `lp.model` reads from a config.json, and what it knows about each.
`oracles/make_families.py` writes this page from `llamapar/describe/families.toml`. It builds every
class with transformers {version} on the meta device, and a test compares the names and shapes of all
parameters with the model's own inventory.

## Read

Every one is counted, checked, cut and drawn, and its checkpoints with Hugging Face's names are resharded.
`lp.run` and `lp.inside` compute Llama's layer, so they refuse a model that needs more and name what is
missing. *Biases* shows what the class always has, or the key of the config.json that adds them. Sliding
windows, soft caps, multipliers and layers without RoPE change no tensor: `lp.memory` and `lp.cost` count
attention over the whole sequence, and `lp.cost` the work of two norms in a layer.

| model_type | class | norms of a layer | QK norms | biases | tied by default | `lp.run` |
|---|---|---|---|---|---|---|
{rows}

A QK norm *over the width* spans all heads. TP replicates its weights, as in transformers
(`models/olmo2/configuration_olmo2.py`, v5.23.0), vLLM (`vllm/model_executor/models/olmo2.py` @028aedf62a)
and OLMo-core (`src/olmo_core/nn/attention/__init__.py`). What TP sends for it differs: vLLM gathers Q and
K, OLMo-core trades heads for tokens, and transformers gathers V as well. So `lp.traffic`, `lp.cost` and
`lp.plan` give no answer for such a model with tp > 1; `lp.memory` counts it as OLMo-core cuts it, where a
rank norms a share of the tokens.

## Read inside another model

Of these only the language model in `text_config` is read; "(text)" ends its name. The vision tower and the
projector are not counted.

| model_type | class | language model |
|---|---|---|
{wrapped}

Without `tie_word_embeddings` in either config the language model's own default counts, as in the published
weights of Mistral Small 3.1, which have a head of their own.

## Mixtures of experts

Everything but the experts is judged as of a dense model: heads, KV heads, the vocabulary, the sequence,
stages, and the memory and traffic of attention. The FFNs of a mixture, with their experts and routers, are
counted in parameters, and no other number holds them: `lp.check` says so (LP109), `lp.memory` gives a lower
bound, `lp.traffic` is of attention, embedding and loss. What would need the experts names them and refuses:
`lp.run`, `lp.cost`, `lp.plan`, `lp.zero`, `lp.loading`, checkpoints and settings for a trainer.

| model_type | class | experts are the key | in layers | attention |
|---|---|---|---|---|
{mixtures}

A test compares all parameters of each class with transformers, and the totals of published models with what
their publishers say. Weights that a publisher quantised, as gpt-oss's and DeepSeek-V3's, are counted as they
were before. MLA has no KV heads of its own: that TP cuts whole heads is judged, its memory and traffic are
not. DeepSeek-V3's layer that predicts a second token is not counted.

## Refused

transformers has {all} causal model types. The {refused} that stand in no table above are refused by
name, and so is any key of a config.json that may add or remove a tensor.

- The names of a first layer are Llama's, but it is a mixture of experts with dense first layers, or sees
  images: {alike}.
- {built} differ by up to six tensors of a layer: {near}.
- The other {far} differ by more, or need more than defaults to be built.
"""

PLACES = {
    "attention_norm": "before attention",
    "attention_post_norm": "after attention",
    "ffn_norm": "before MLP",
    "ffn_post_norm": "after MLP",
}
BIASES = {"qkv_bias": "Q, K, V", "o_bias": "O"}


def page(cases: list[dict[str, Any]], version: str = "5.23.0") -> str:
    """The page, from the cases of families.json."""
    survey = [case for case in cases if "class" in case]
    others = [case for case in survey if case["model_type"] not in FAMILIES]
    alike = [case for case in others if case.get("counts") == [0, 0]]
    near = [case for case in others if 0 < sum(case.get("counts", [0])) <= 6]
    far = [case for case in others if case not in alike and case not in near]
    return HEAD.format(
        version=version,
        rows="\n".join(
            _row(family) for family in FAMILIES.values() if not family.wraps and not family.experts
        ),
        mixtures="\n".join(_mixture(family) for family in FAMILIES.values() if family.experts),
        wrapped="\n".join(
            f"| `{family.name}` | `{family.architectures[0]}` | {_codes(family.wraps)} |"
            for family in FAMILIES.values()
            if family.wraps
        ),
        all=len(survey),
        refused=len(others),
        alike=_codes(case["model_type"] for case in alike),
        built=len(near),
        near="; ".join(_difference(case) for case in near),
        far=len(far),
    )


def _codes(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _row(family: Family) -> str:
    always = [word for field, word in BIASES.items() if family.fields.get(field)]
    biases = [", ".join(always)] * bool(always)
    for key, fields in family.flags.items():
        if all(family.fields.get(field) for field in fields):
            biases.append(f"none by `{key}=false`")
            continue
        biases.append(f"`{key}`: {', '.join(BIASES[field] for field in fields)}")
    normed = "over the width" if family.dims.get("q_norm") else "each head"
    cells = [
        f"`{family.name}`",
        f"`{family.architectures[0]}`",
        ", ".join(word for name, word in PLACES.items() if name in family.names) or "without weights",
        normed if family.fields.get("qk_norm") else "",
        "; ".join(biases),
        "yes" if family.fields["tied"] else "",
        f"no: {family.lacks}" if family.lacks else "yes",
    ]
    return f"| {' | '.join(cells)} |"


def _mixture(family: Family) -> str:
    step = family.experts.get("step")
    first = family.experts.get("first")
    layers = f"every `{step}`" if step else "all"
    if first:
        layers = f"from `{first}` on"
    kept = "MLA, of its own kind" if "latent" in family.experts else "as of a dense model"
    sinks = ", with sinks" if "beside" in family.experts else ""
    cells = [
        f"`{family.name}`",
        f"`{family.architectures[0]}`",
        f"`{family.experts['count']}`",
        layers,
        kept + sinks,
    ]
    return f"| {' | '.join(cells)} |"


def _difference(case: dict[str, Any]) -> str:
    more, fewer = (
        [name.removesuffix(".weight").removeprefix("self_attn.") for name in case[side]]
        for side in ("more", "fewer")
    )
    parts = [f"with {', '.join(more)}"] * bool(more) + [f"without {', '.join(fewer)}"] * bool(fewer)
    return f"`{case['model_type']}` ({', '.join(parts)})"
