"""The experts of a mixture as numbers. They are counted in parameters, and nothing else of them is judged.

Which rank holds an expert, what it computes and which tokens travel to it depend on the trainer and on the
router. So a mixture's other tensors are judged as a dense model's, and answers say what they leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llamapar.errors import MAX_SIZE, Fields, ModelError, flag, shown, whole

from .configfile import Values, required


@dataclass(frozen=True, repr=False)
class Experts(Fields, word="field of experts", error=ModelError):
    """The feed-forward networks of a mixture's layers.

    count: experts of a layer that the router chooses from. active: how many it chooses for a token.
    width: of an expert. shared: experts of a layer that every token goes to.
    first, step: layer i has experts if i >= first and step divides i + 1; other layers have an FFN of the
    model's ffn_dim. biased: experts and routers have biases.
    beside: parameters of a layer's attention that are counted and not laid out: gpt-oss's sinks, or all of
    them if `latent`. latent: attention is multi-head latent attention (MLA), and not judged either.

    Raises ModelError, naming the field.
    """

    count: int = 0
    active: int = 0
    width: int = 0
    shared: int = 0
    first: int = 0
    step: int = 1
    beside: int = 0
    biased: bool = False
    latent: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("biased", "latent"):
                flag(name, value, ModelError)
                continue
            least = 1
            if name in ("shared", "first", "beside"):
                least = 0
            whole(f"experts.{name}", value, least, MAX_SIZE, ModelError)

    def __repr__(self) -> str:
        return repr(vars(self))  # which a ModelConfig takes, too

    def layers(self, n_layers: int) -> list[int]:
        """The layers that have experts."""
        return [i for i in range(self.first, n_layers) if (i + 1) % self.step == 0]

    def numel(self, dim: int, ffn_dim: int, n_layers: int, active: bool = False) -> int:
        """Parameters of experts, routers, other layers' FFNs and `beside`; active: those of one token."""
        layers = len(self.layers(n_layers))
        bias = (2 * self.width + dim) * self.biased  # of gate and up, and of down
        chosen = self.count
        if active:
            chosen = self.active
        routers = self.count * (dim + self.biased)
        mixed = chosen * (3 * dim * self.width + bias) + self.shared * 3 * dim * self.width + routers
        return layers * mixed + (n_layers - layers) * 3 * dim * ffn_dim + n_layers * self.beside


LATENT = (
    *("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)


def experts_from(raw: Mapping[str, object], row: Mapping[str, object]) -> Experts | None:
    """The experts of a config.json, by its family's row: field → key, or value; None for an empty row.

    MLA is counted after DeepSeek-V3 (arXiv:2412.19437, section 2.1.1): two low-rank projections, each with a
    norm between its halves. Raises ModelError.
    """
    if not row:
        return None
    fields = Values(row)
    for name, key in row.items():
        if isinstance(key, str):
            fields[name] = required(raw, key, "config.json")
    if row.get("latent"):
        sizes = [required(raw, key, "config.json") for key in LATENT]
        dim, heads, q_rank, kv_rank, nope, rope, value = (
            whole(key, size, 1, MAX_SIZE, ModelError) for key, size in zip(LATENT, sizes, strict=True)
        )
        queries = dim * q_rank + q_rank + q_rank * heads * (nope + rope)
        keys = dim * (kv_rank + rope) + kv_rank + kv_rank * heads * (nope + value)
        fields["beside"] = queries + keys + heads * value * dim
    found = Experts(**fields)
    # Llama 4 may also list the layers; transformers then reads the list alone.
    listed = raw.get("moe_layers")
    if listed and listed != found.layers(whole("num_hidden_layers", raw["num_hidden_layers"])):
        raise ModelError(
            f"moe_layers={shown(listed)}: not every layer that interleave_moe_layer_step={found.step} says",
            "only layers at equal distances are counted",
            field="moe_layers",
        )
    return found
