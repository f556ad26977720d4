"""Model configurations: frozen, checked when made, and plain data.

A config names sizes and choices; it builds nothing and imports nothing but the standard library.
:func:`glassformer.build_model` turns one into a model. Variants are made with
:func:`dataclasses.replace`, which checks again.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args

from glassformer.errors import ConfigError, did_you_mean

__all__ = [
    "Activation",
    "DecoderConfig",
    "EncoderConfig",
    "EncoderDecoderConfig",
    "NormKind",
    "NormPosition",
    "PositionKind",
    "TransformerConfig",
    "config_from_dict",
    "gpt2_small",
    "llama_7b",
    "transformer_base",
]

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"]
NormKind = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
PositionKind = Literal["sinusoidal", "learned", "rotary", "relative", "none"]
Removed = tuple[tuple[str, tuple[int, ...]], ...]  # pairs, as a dict could not be hashed

C = TypeVar("C", bound="TransformerConfig")  # not Self: shape checkers cannot follow it

_CHOICES: dict[str, tuple[str, ...]] = {
    "activation": get_args(Activation),
    "norm": get_args(NormKind),
    "norm_position": get_args(NormPosition),
    "positions": get_args(PositionKind),
}
_SWITCHES = ("bias", "qkv_bias", "head_bias", "tie_embeddings", "embedding_norm")
_NUMBERS = ("dropout", "layer_drop", "norm_eps", "rope_base", "expert_capacity")
_REMOVED = {"pruned_heads", "dropped_layers"}
_SIZES = (
    "vocab_size",
    "max_len",
    "d_model",
    "n_heads",
    "n_layers",
    "n_kv_heads",
    "head_size",
    "d_ff",
    "sliding_window",
    "relative_buckets",
    "relative_max_distance",
    "n_experts",
    "experts_per_token",
    "source_vocab_size",
    "n_encoder_layers",
)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and choices that all three models share.

    Args:
        vocab_size: number of token ids, V.
        max_len: longest sequence the model accepts, in tokens.
        d_model: width of the residual stream, D.
        n_heads: number of query heads, H; divides ``d_model``.
        n_layers: number of blocks, L.
        n_kv_heads: number of key/value heads; divides ``n_heads``. ``None`` means ``n_heads``
            (multi-head attention); fewer is grouped-query attention (Ainslie et al. 2023), one is
            multi-query attention (Shazeer 2019).
        head_size: width of one head, E. ``None`` means ``d_model // n_heads``; with a number,
            ``n_heads`` need not divide ``d_model``, as in T5.
        d_ff: width of the feed-forward layer. ``None`` means ``4 * d_model``.
        activation: ``relu``, ``gelu`` (exact), ``gelu_tanh`` (GPT-2's) or ``silu``; gated:
            ``swiglu`` or ``geglu`` (its gate goes through ``gelu_tanh``).
        norm: ``layer`` (Ba et al. 2016) or ``rms`` (Zhang & Sennrich 2019).
        norm_position: ``pre`` (Xiong et al. 2020) or ``post`` (Vaswani et al. 2017).
        norm_eps: added to the variance inside the root.
        positions: ``sinusoidal``, ``learned``, ``rotary`` (Su et al. 2021), ``relative`` (a bias on
            the scores for each bucket of distances, Raffel et al. 2020) or ``none``. With
            sinusoids the token vectors are multiplied by sqrt(d_model), as in Vaswani et al. 2017
            section 3.4, so that the sinusoids do not drown them.
        rope_base: base of the rotary frequencies.
        relative_buckets, relative_max_distance: how ``relative`` positions tell distances apart.
        sliding_window: a decoder's token sees itself and the ``sliding_window - 1`` tokens before
            it (Beltagy et al. 2020; Jiang et al. 2023); ``None`` for all before it.
        n_experts: feed-forward networks per layer, of which a router chooses ``experts_per_token``
            for each token (Shazeer et al. 2017); ``None`` for a single one and no router.
        experts_per_token: networks that each token goes through.
        expert_capacity: tokens that one expert takes, as a multiple of its fair share; those above
            it skip the layer (Fedus et al. 2022). Who is above it depends on the rest of the batch,
            in evaluation too: scores then change with the batch size, and written text with the
            cache. ``None`` for no limit, and for neither.
        bias: whether linear layers have a bias.
        qkv_bias: whether the projections to queries, keys and values have one; ``None`` means
            ``bias``.
        head_bias: whether the logits have a bias of their own.
        dropout: share of values dropped in training: embeddings, attention weights, the hidden
            layer of the feed-forward network and the output of every sublayer.
        layer_drop: probability that training skips a whole layer (Fan et al. 2020).
        pad_id: the id of padding, whose embedding row is zero at the start, and stays so unless a
            tied output head trains it; ``None`` for no such id.
        tie_embeddings: whether the output head uses the embedding matrix (Press & Wolf 2017).
        pruned_heads: what :func:`glassformer.pruning.prune_heads` removed: pairs of the name of an
            attention and its query heads that are gone. Heads keep the numbers that they had
            before any pruning, and ``n_heads``, ``n_kv_heads`` and ``d_head`` stay as they were.
        dropped_layers: what :func:`glassformer.pruning.drop_layers` removed: pairs of ``encoder``
            or ``decoder`` and the blocks that are gone, by the numbers that they had before any
            pruning. ``n_layers`` counts those that are left.

    Raises:
        ConfigError: a size, choice or combination that cannot work.
    """

    kind: ClassVar[str] = ""

    vocab_size: int
    max_len: int
    d_model: int
    n_heads: int
    n_layers: int
    n_kv_heads: int | None = None
    head_size: int | None = None
    d_ff: int | None = None
    activation: Activation = "gelu"
    norm: NormKind = "layer"
    norm_position: NormPosition = "pre"
    norm_eps: float = 1e-5
    positions: PositionKind = "rotary"
    rope_base: float = 10_000.0
    relative_buckets: int = 32
    relative_max_distance: int = 128
    sliding_window: int | None = None
    n_experts: int | None = None
    experts_per_token: int = 2
    expert_capacity: float | None = None
    bias: bool = True
    qkv_bias: bool | None = None
    head_bias: bool = False
    dropout: float = 0.0
    layer_drop: float = 0.0
    pad_id: int | None = None
    tie_embeddings: bool = True
    pruned_heads: Removed = ()
    dropped_layers: Removed = ()

    def __post_init__(self) -> None:
        for name in _SIZES:
            _check_size(name, getattr(self, name, None), optional=_is_optional(self, name))
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        check_heads(self.d_model, self.n_heads, self.kv_heads, self.head_size)
        for name in _NUMBERS:
            check_number(name, getattr(self, name), optional=_is_optional(self, name))
        for name in ("dropout", "layer_drop"):
            share = getattr(self, name)
            if not 0.0 <= share < 1.0:
                raise ConfigError(f"{name}={share} is a probability; give 0 <= {name} < 1")
        if not self.norm_eps > 0.0:
            raise ConfigError(f"norm_eps={self.norm_eps} must be positive, such as 1e-5")
        if not self.rope_base > 0.0:
            raise ConfigError(f"rope_base={self.rope_base} must be positive, such as 10000")
        for name in _SWITCHES:
            value = getattr(self, name, True)
            if not isinstance(value, bool) and not (value is None and _is_optional(self, name)):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be True or False")
        _check_pad(self.pad_id, self.vocab_size)
        if self.positions == "rotary" and self.d_head % 2:
            raise ConfigError(
                f"positions='rotary' turns pairs of numbers, so d_head must be even, but "
                f"d_model={self.d_model} with n_heads={self.n_heads} gives d_head={self.d_head}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ConfigError(
                f"positions='sinusoidal' fills pairs of numbers, so d_model={self.d_model} "
                "must be even"
            )
        _check_relative(self)
        _check_experts(self)
        for name in sorted(_REMOVED):
            object.__setattr__(self, name, _as_removed(name, getattr(self, name)))
        _check_pruning(self)

    @property
    def d_head(self) -> int:
        """Width of one head once ``head_size=None`` is resolved."""
        return self.d_model // self.n_heads if self.head_size is None else self.head_size

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads once ``n_kv_heads=None`` is resolved."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def ff_size(self) -> int:
        """Width of the feed-forward layer once ``d_ff=None`` is resolved."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def stacks(self) -> dict[str, int]:
        """Name of each stack of the model -> number of its blocks."""
        return {self.kind: self.n_layers}

    def kept_heads(self, attention: str) -> tuple[int, ...]:
        """The query heads that an attention still has, such as ``decoder.blocks.0.self_attn``.

        They are named by the numbers that they had before any pruning.
        """
        removed = dict(self.pruned_heads).get(attention, ())
        return kept_heads(self.n_heads, self.kv_heads, removed)

    def head_counts(self, attention: str) -> tuple[int, int]:
        """How many query heads and how many key/value heads an attention still has."""
        kept, group = self.kept_heads(attention), self.n_heads // self.kv_heads
        return len(kept), len({head // group for head in kept})

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON-ready data, with ``kind`` naming its class."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls: type[C], data: dict[str, Any]) -> C:
        """The config that :meth:`to_dict` wrote. Unknown or missing keys raise ConfigError."""
        given = dict(data)
        kind = given.pop("kind", cls.kind)
        if kind != cls.kind:
            raise ConfigError(f"this is a config of kind {kind!r}, not {cls.kind!r}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in given:
            if key not in fields:
                raise ConfigError(f"unknown config key {key!r}; {did_you_mean(key, fields)}")
        missing = [
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and name not in given
        ]
        if missing:
            raise ConfigError(f"a {cls.kind} config lacks {', '.join(missing)}")
        for name in _REMOVED & given.keys():
            given[name] = _as_removed(name, given[name])  # JSON has no tuples
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """A bidirectional stack such as BERT's.

    Args:
        n_segments: number of segment ids (BERT has 2); 0 for none.
        embedding_norm: whether a norm follows the sum of the embeddings, as in BERT.
    """

    kind: ClassVar[str] = "encoder"

    n_segments: int = 0
    embedding_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_bias:
            raise ConfigError("head_bias=True asks for logits, and an encoder has none; leave it")
        if self.sliding_window is not None:
            raise ConfigError(
                f"sliding_window={self.sliding_window} looks back only, and an encoder's token "
                "sees both sides; leave it out"
            )
        if self.n_segments != 0:
            _check_size("n_segments", self.n_segments, optional=False)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """A causal language model such as GPT-2 or LLaMA."""

    kind: ClassVar[str] = "decoder"


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(TransformerConfig):
    """A translator such as the Transformer of Vaswani et al. 2017.

    Args:
        n_encoder_layers: blocks of the encoder; ``None`` means ``n_layers``.
        source_vocab_size: ids of the source language; ``None`` means that source and target share
            one vocabulary and one embedding matrix.
    """

    kind: ClassVar[str] = "encoder_decoder"

    n_encoder_layers: int | None = None
    source_vocab_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_vocab_size is not None:
            _check_pad(self.pad_id, self.source_vocab_size)

    @property
    def encoder_layers(self) -> int:
        """Blocks of the encoder once ``n_encoder_layers=None`` is resolved."""
        return self.n_layers if self.n_encoder_layers is None else self.n_encoder_layers

    @property
    def stacks(self) -> dict[str, int]:
        """Name of each stack of the model -> number of its blocks."""
        return {"encoder": self.encoder_layers, "decoder": self.n_layers}


def config_from_dict(data: dict[str, Any]) -> TransformerConfig:
    """The config of any kind that ``to_dict`` wrote; ``data["kind"]`` names the class.

    Raises:
        ConfigError: another kind, unknown or missing keys, or values that cannot work.
    """
    classes = {c.kind: c for c in (EncoderConfig, DecoderConfig, EncoderDecoderConfig)}
    kind = data.get("kind")
    if kind not in classes:
        raise ConfigError(f"config kind {kind!r} is not one of {', '.join(sorted(classes))}")
    return classes[kind].from_dict(data)


def transformer_base(vocab_size: int = 37_000) -> EncoderDecoderConfig:
    """The base model of Vaswani et al. 2017, table 3."""
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        max_len=1024,
        d_model=512,
        n_heads=8,
        n_layers=6,
        activation="relu",
        norm_position="post",
        positions="sinusoidal",
        dropout=0.1,
    )


def gpt2_small() -> DecoderConfig:
    """GPT-2 small (Radford et al. 2019): 124,439,808 parameters."""
    return DecoderConfig(
        vocab_size=50_257,
        max_len=1024,
        d_model=768,
        n_heads=12,
        n_layers=12,
        activation="gelu_tanh",
        positions="learned",
        dropout=0.1,
    )


def llama_7b() -> DecoderConfig:
    """LLaMA 7B (Touvron et al. 2023): 6,738,415,616 parameters."""
    return DecoderConfig(
        vocab_size=32_000,
        max_len=2048,
        d_model=4096,
        n_heads=32,
        n_layers=32,
        d_ff=11_008,
        activation="swiglu",
        norm="rms",
        norm_eps=1e-6,
        bias=False,
        tie_embeddings=False,
    )


def _is_optional(config: TransformerConfig, name: str) -> bool:
    field = {f.name: f for f in dataclasses.fields(config)}.get(name)
    return field is None or field.default is None


def _check_size(name: str, value: Any, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")


def check_number(name: str, value: Any, *, optional: bool) -> None:
    """Refuse what is no number, and None unless it is optional."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name}={value!r} must be a number")


def _check_pad(pad_id: Any, vocab_size: int) -> None:
    if pad_id is None:
        return
    if isinstance(pad_id, bool) or not isinstance(pad_id, int) or not 0 <= pad_id < vocab_size:
        raise ConfigError(
            f"pad_id={pad_id!r} is no id of a vocabulary of {vocab_size}; give an id from 0 to "
            f"{vocab_size - 1}, or None for no padding id"
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown; {did_you_mean(str(value), choices)}")


def _check_relative(config: TransformerConfig) -> None:
    """Half of the buckets are for single distances, the other half reach to the longest one."""
    buckets, longest = config.relative_buckets, config.relative_max_distance
    if buckets < 4 or buckets % 2 or longest <= buckets // 2:
        raise ConfigError(
            f"relative_buckets={buckets} must be even and at least 4, and "
            f"relative_max_distance={longest} above half of it; try 32 and 128"
        )


def _check_experts(config: TransformerConfig) -> None:
    if config.n_experts is None:
        return
    if config.experts_per_token > config.n_experts:
        raise ConfigError(
            f"experts_per_token={config.experts_per_token} cannot exceed "
            f"n_experts={config.n_experts}; choose at most that many"
        )
    if config.expert_capacity is not None and not 0.0 < config.expert_capacity < math.inf:
        raise ConfigError(
            f"expert_capacity={config.expert_capacity} must be positive and finite, such as 1.25, "
            "or None for no limit"
        )


def check_heads(d_model: int, n_heads: int, n_kv_heads: int, head_size: int | None = None) -> None:
    """Refuse heads that do not share the width, or key/value heads that do not share the heads."""
    _check_size("n_heads", n_heads, optional=False)
    _check_size("n_kv_heads", n_kv_heads, optional=False)
    if head_size is None and d_model % n_heads:
        near = sorted(
            (n for n in range(1, d_model + 1) if d_model % n == 0),
            key=lambda n: (abs(n - n_heads), n),
        )[:2]
        remedy = " or ".join(str(n) for n in sorted(near))
        raise ConfigError(f"n_heads={n_heads} must divide d_model={d_model}; try n_heads={remedy}")
    if n_heads % n_kv_heads:
        fits = ", ".join(str(n) for n in range(1, n_heads + 1) if n_heads % n == 0)
        raise ConfigError(
            f"n_kv_heads={n_kv_heads} must divide n_heads={n_heads}; it may be {fits}"
        )


def kept_heads(n_heads: int, n_kv_heads: int, removed: Collection[int]) -> tuple[int, ...]:
    """The query heads that stay, where every key/value head that stays serves equally many.

    A key/value head without any query head left goes with them.
    """
    unknown = [head for head in removed if not 0 <= head < n_heads]
    if unknown:
        raise ConfigError(
            f"there is no head {unknown[0]} among {n_heads}; give numbers from 0 to {n_heads - 1}"
        )
    kept = tuple(head for head in range(n_heads) if head not in removed)
    group = n_heads // n_kv_heads
    served = Counter(head // group for head in kept)
    if len(set(served.values())) > 1:
        raise ConfigError(
            f"without heads {', '.join(map(str, sorted(removed)))} the key/value heads would serve "
            f"{', '.join(str(served[i]) for i in range(n_kv_heads))} query heads; remove the same "
            f"number from each group of {group}, or whole groups"
        )
    return kept


def _as_removed(name: str, value: Any) -> Removed:
    """Sorted pairs of tuples, whatever JSON made of them."""
    try:
        pairs = sorted((str(part), tuple(sorted(gone))) for part, gone in value)
        numbers = [number for _, gone in pairs for number in gone]
        fits = all(type(number) is int and number >= 0 for number in numbers)
        if not fits or any(len(set(gone)) != len(gone) for _, gone in pairs):
            raise TypeError("numbers from 0, each of them once")
        if len(dict(pairs)) != len(pairs):
            raise TypeError("every name once")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name}={value!r} must be pairs of a name and the numbers of what is gone, such as "
            f"(('decoder', (0, 2)),): {error}"
        ) from error
    return tuple(pair for pair in pairs if pair[1])


def _check_pruning(config: TransformerConfig) -> None:
    for stack, gone in config.dropped_layers:
        whole = config.stacks.get(stack, 0) + len(gone)
        if stack not in config.stacks or gone[-1] >= whole:
            raise ConfigError(
                f"dropped_layers names blocks {', '.join(map(str, gone))} of {stack!r}; the stacks "
                f"are {', '.join(config.stacks)}, and this one would have had {whole} blocks"
            )
    attentions = {
        f"{stack}.blocks.{i}.{attention}"
        for stack, n_layers in config.stacks.items()
        for i in range(n_layers)
        for attention in ("self_attn", "cross_attn")
        if attention == "self_attn" or (stack == "decoder" and len(config.stacks) > 1)
    }
    for name, gone in config.pruned_heads:
        if name not in attentions:
            raise ConfigError(
                f"pruned_heads names {name!r}, which is no attention of this model; "
                f"{did_you_mean(name, sorted(attentions))}"
            )
        kept_heads(config.n_heads, config.kv_heads, gone)
