"""Names and layouts of other libraries' weights, as tables that read in both directions.

A table holds pairs (ours, theirs) of parameter names; ``{i}`` stands for the layer. ``theirs`` may
name a slice ``name[k/n]``: part k of n along the first axis, as where queries, keys and values
stand in one matrix. ``~`` before a name means that their matrix is stored transposed.
"""

import re

import torch


def both(ours: str, theirs: str) -> list[tuple[str, str]]:
    """Weight and bias."""
    return [(f"{ours}.weight", f"{theirs}.weight"), (f"{ours}.bias", f"{theirs}.bias")]


def packed(ours: str, theirs: str) -> list[tuple[str, str]]:
    """nn.MultiheadAttention keeps the three projections in one matrix."""
    parts = []
    for k, name in enumerate("qkv"):
        parts.append((f"{ours}.{name}_proj.weight", f"{theirs}.in_proj_weight[{k}/3]"))
        parts.append((f"{ours}.{name}_proj.bias", f"{theirs}.in_proj_bias[{k}/3]"))
    return parts + both(f"{ours}.o_proj", f"{theirs}.out_proj")


TORCH_ENCODER_LAYER = [
    *packed("self_attn", "self_attn"),
    *both("self_attn_norm", "norm1"),
    *both("feed_forward.up_proj", "linear1"),
    *both("feed_forward.down_proj", "linear2"),
    *both("feed_forward_norm", "norm2"),
]
TORCH_DECODER_LAYER = [
    *packed("self_attn", "self_attn"),
    *both("self_attn_norm", "norm1"),
    *packed("cross_attn", "multihead_attn"),
    *both("cross_attn_norm", "norm2"),
    *both("feed_forward.up_proj", "linear1"),
    *both("feed_forward.down_proj", "linear2"),
    *both("feed_forward_norm", "norm3"),
]


def prefixed(table, ours: str, theirs: str) -> list[tuple[str, str]]:
    return [(f"{ours}{a}", f"{theirs}{b}") for a, b in table]


TORCH_TRANSFORMER = [
    *prefixed(TORCH_ENCODER_LAYER, "encoder.blocks.{i}.", "encoder.layers.{i}."),
    *prefixed(TORCH_DECODER_LAYER, "decoder.blocks.{i}.", "decoder.layers.{i}."),
    *both("encoder.norm", "encoder.norm"),
    *both("decoder.norm", "decoder.norm"),
]

_GPT2_BLOCK, _GPT2_LAYER = "decoder.blocks.{i}.", "transformer.h.{i}."
GPT2 = [
    ("embedding.tokens.weight", "transformer.wte.weight"),
    ("embedding.positions.weight", "transformer.wpe.weight"),
    *prefixed(
        [
            *both("self_attn_norm", "ln_1"),
            ("self_attn.q_proj.weight", "~attn.c_attn.weight[0/3]"),
            ("self_attn.k_proj.weight", "~attn.c_attn.weight[1/3]"),
            ("self_attn.v_proj.weight", "~attn.c_attn.weight[2/3]"),
            ("self_attn.q_proj.bias", "attn.c_attn.bias[0/3]"),
            ("self_attn.k_proj.bias", "attn.c_attn.bias[1/3]"),
            ("self_attn.v_proj.bias", "attn.c_attn.bias[2/3]"),
            ("self_attn.o_proj.weight", "~attn.c_proj.weight"),
            ("self_attn.o_proj.bias", "attn.c_proj.bias"),
            *both("feed_forward_norm", "ln_2"),
            ("feed_forward.up_proj.weight", "~mlp.c_fc.weight"),
            ("feed_forward.up_proj.bias", "mlp.c_fc.bias"),
            ("feed_forward.down_proj.weight", "~mlp.c_proj.weight"),
            ("feed_forward.down_proj.bias", "mlp.c_proj.bias"),
        ],
        _GPT2_BLOCK,
        _GPT2_LAYER,
    ),
    *both("decoder.norm", "transformer.ln_f"),
]

LLAMA = [
    ("embedding.tokens.weight", "model.embed_tokens.weight"),
    *prefixed(
        [
            ("self_attn_norm.weight", "input_layernorm.weight"),
            *((f"self_attn.{n}_proj.weight", f"self_attn.{n}_proj.weight") for n in "qkvo"),
            ("feed_forward_norm.weight", "post_attention_layernorm.weight"),
            *(
                (f"feed_forward.{n}_proj.weight", f"mlp.{n}_proj.weight")
                for n in ("gate", "up", "down")
            ),
        ],
        "decoder.blocks.{i}.",
        "model.layers.{i}.",
    ),
    ("decoder.norm.weight", "model.norm.weight"),
    ("lm_head.weight", "lm_head.weight"),
]

BERT = [
    ("embedding.tokens.weight", "embeddings.word_embeddings.weight"),
    ("embedding.positions.weight", "embeddings.position_embeddings.weight"),
    ("embedding.segments.weight", "embeddings.token_type_embeddings.weight"),
    *both("embedding.norm", "embeddings.LayerNorm"),
    *prefixed(
        [
            *both("self_attn.q_proj", "attention.self.query"),
            *both("self_attn.k_proj", "attention.self.key"),
            *both("self_attn.v_proj", "attention.self.value"),
            *both("self_attn.o_proj", "attention.output.dense"),
            *both("self_attn_norm", "attention.output.LayerNorm"),
            *both("feed_forward.up_proj", "intermediate.dense"),
            *both("feed_forward.down_proj", "output.dense"),
            *both("feed_forward_norm", "output.LayerNorm"),
        ],
        "encoder.blocks.{i}.",
        "encoder.layer.{i}.",
    ),
]

_MARIAN_SELF = [
    *(pair for n in "qkv" for pair in both(f"self_attn.{n}_proj", f"self_attn.{n}_proj")),
    *both("self_attn.o_proj", "self_attn.out_proj"),
    *both("self_attn_norm", "self_attn_layer_norm"),
    *both("feed_forward.up_proj", "fc1"),
    *both("feed_forward.down_proj", "fc2"),
    *both("feed_forward_norm", "final_layer_norm"),
]
_MARIAN_CROSS = [
    *(pair for n in "qkv" for pair in both(f"cross_attn.{n}_proj", f"encoder_attn.{n}_proj")),
    *both("cross_attn.o_proj", "encoder_attn.out_proj"),
    *both("cross_attn_norm", "encoder_attn_layer_norm"),
]
MARIAN = [
    ("embedding.tokens.weight", "model.shared.weight"),
    *prefixed(_MARIAN_SELF, "encoder.blocks.{i}.", "model.encoder.layers.{i}."),
    *prefixed([*_MARIAN_SELF, *_MARIAN_CROSS], "decoder.blocks.{i}.", "model.decoder.layers.{i}."),
]


def expand(table, n_layers: int) -> list[tuple[str, str]]:
    """The table with ``{i}`` written out for every layer."""
    full = []
    for ours, theirs in table:
        layers = range(n_layers) if "{i}" in ours else [0]
        full += [(ours.replace("{i}", str(i)), theirs.replace("{i}", str(i))) for i in layers]
    return full


def _parse(theirs: str) -> tuple[str, bool, int, int]:
    transposed = "~" in theirs
    match = re.fullmatch(r"(.*?)(?:\[(\d)/(\d)\])?", theirs.replace("~", ""))
    name, part, parts = match.groups()
    return name, transposed, int(part or 0), int(parts or 1)


def to_ours(theirs: dict[str, torch.Tensor], table, n_layers: int) -> dict[str, torch.Tensor]:
    """A state dict of ours from one of theirs."""
    ours = {}
    for name, source in expand(table, n_layers):
        other, transposed, part, parts = _parse(source)
        tensor = theirs[other].T if transposed else theirs[other]
        ours[name] = tensor.chunk(parts, dim=0)[part].clone()
    return ours


def to_theirs(ours: dict[str, torch.Tensor], table, n_layers: int) -> dict[str, torch.Tensor]:
    """The inverse of :func:`to_ours`."""
    chunks: dict[tuple[str, bool], dict[int, torch.Tensor]] = {}
    for name, target in expand(table, n_layers):
        other, transposed, part, _ = _parse(target)
        chunks.setdefault((other, transposed), {})[part] = ours[name]
    theirs = {}
    for (other, transposed), parts in chunks.items():
        whole = torch.cat([parts[k] for k in sorted(parts)])
        theirs[other] = (whole.T if transposed else whole).contiguous()
    return theirs
