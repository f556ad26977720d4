"""A whole training run from a dozen plain values, as the command line takes and saves them.

Book: training
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
from torch import nn

from glassformer.config import DecoderConfig
from glassformer.data import (
    Corpus,
    Tokenizer,
    load_king_james,
    load_text,
    train_tokenizer,
    windows,
)
from glassformer.errors import ConfigError
from glassformer.evaluation import evaluate_nll
from glassformer.models import Decoder
from glassformer.training.batches import WindowBatches
from glassformer.training.distributed import sharded, wrap
from glassformer.training.loop import Schedule, Trainer, TrainSettings
from glassformer.training.step import Precision

__all__ = ["PRESETS", "PresetName", "Recipe", "RunRecipe"]

PresetName = Literal["tiny", "small", "base"]

# d_model, n_heads, n_layers, peak learning rate
PRESETS: dict[str, tuple[int, int, int, float]] = {
    "tiny": (64, 2, 2, 4e-3),
    "small": (128, 4, 4, 3e-3),
    "base": (256, 8, 6, 1.5e-3),
}

R = TypeVar("R", bound="RunRecipe")  # not Self: shape checkers cannot follow it


@dataclass(frozen=True, kw_only=True)
class RunRecipe:
    """What the recipes of a language model and of a translator share.

    Args:
        preset: size of the model.
        vocab_size: pieces of the tokenizer.
        length: tokens the model can see.
        steps, accumulate, schedule, label_smoothing: as in :class:`TrainSettings`.
        precision, checkpoint_blocks, average, patience: as in :class:`TrainSettings`.
        lr: peak learning rate; the preset's own when ``None``.
        warmup: steps; a share of all when ``None``.
        dropout: share of values dropped in training.
        eval_every: steps between dev losses; a tenth of all when ``None``.
        save_every: steps between checkpoints; as ``eval_every`` when ``None``.
        seed: of weights, dropout and order.

    Raises:
        ConfigError: a value that makes no sense.

    Book: training
    """

    preset: PresetName = "small"
    vocab_size: int = 2048
    length: int = 128
    steps: int = 1000
    accumulate: int = 1
    lr: float | None = None
    warmup: int | None = None
    schedule: Schedule = "cosine"
    dropout: float = 0.0
    label_smoothing: float = 0.0
    precision: Precision = "float32"
    checkpoint_blocks: bool = False
    average: int = 1
    patience: int | None = None
    eval_every: int | None = None
    save_every: int | None = None
    seed: int = 0

    at_least_one: ClassVar[tuple[str, ...]] = ("length", "save_every")
    warmup_share: ClassVar[int] = 20

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ConfigError(f"preset={self.preset!r} may be {', '.join(get_args(PresetName))}")
        self.settings()
        for name in self.at_least_one:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed={self.seed} must be from 0 to 2**63 - 1")

    def settings(self) -> TrainSettings:
        """The knobs of the loop, with what was left open filled in."""
        return TrainSettings(
            steps=self.steps,
            lr=PRESETS[self.preset][3] if self.lr is None else self.lr,
            warmup=self.steps // self.warmup_share if self.warmup is None else self.warmup,
            schedule=self.schedule,
            accumulate=self.accumulate,
            label_smoothing=self.label_smoothing,
            precision=self.precision,
            checkpoint_blocks=self.checkpoint_blocks,
            eval_every=self._eval_interval,
            average=self.average,
            patience=self.patience,
        )

    def _sizes(self, vocab_size: int, pad_id: int | None) -> dict[str, Any]:
        """What both models take from the preset: the LLaMA layout, small."""
        d_model, n_heads, n_layers, _ = PRESETS[self.preset]
        return {
            "vocab_size": vocab_size,
            "max_len": self.length,
            "d_model": d_model,
            "n_heads": n_heads,
            "n_layers": n_layers,
            "d_ff": d_model * 8 // 3 // 8 * 8,  # a gated network of this width costs as 4 d does
            "activation": "swiglu",
            "norm": "rms",
            "bias": False,
            "dropout": self.dropout,
            "pad_id": pad_id,
        }

    @property
    def save_interval(self) -> int:
        """Steps between checkpoints."""
        return self._eval_interval if self.save_every is None else self.save_every

    @property
    def _eval_interval(self) -> int:
        return max(self.steps // 10, 1) if self.eval_every is None else self.eval_every

    def filled(self: R) -> R:
        """The same recipe with the values in place that ``None`` stands for."""
        settings = self.settings()
        return dataclasses.replace(
            self,
            lr=settings.lr,
            warmup=settings.warmup,
            eval_every=self._eval_interval,
            save_every=self.save_interval,
        )

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON-ready data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[R], data: dict[str, Any]) -> R:
        """The recipe that :meth:`to_dict` wrote.

        What an earlier version did not write has its default.

        Raises:
            ConfigError: these are not the values of a recipe.
        """
        unknown = sorted(set(data) - {field.name for field in dataclasses.fields(cls)})
        try:
            if unknown or not data:
                why = f"{cls.__name__} has no {', '.join(unknown)}" if unknown else "it is empty"
                raise ConfigError(f"no recipe of a run: {why}; give what to_dict wrote")
            return cls(**data)
        except TypeError as error:
            raise ConfigError(f"no recipe of a run: a value of the wrong type ({error})") from error


@dataclass(frozen=True, kw_only=True)
class Recipe(RunRecipe):
    """How to train a decoder on one text: the same recipe and machine give the same model.

    Args:
        text: path of a UTF-8 text; ``None`` for the King James Bible.
        stride: steps between windows; ``length`` when ``None``.
        batch_size: windows per micro-batch.
        warmup: a twentieth of all steps when ``None``.

    All others are those of :class:`RunRecipe`.

    Raises:
        ConfigError: a value that makes no sense.

    Book: training
    """

    text: str | None = None
    stride: int | None = None
    batch_size: int = 16

    at_least_one: ClassVar[tuple[str, ...]] = ("length", "batch_size", "save_every")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and not 1 <= self.stride <= self.length:
            raise ConfigError(
                f"stride={self.stride} must be from 1 to length={self.length}: a larger one would "
                "skip tokens"
            )
        self.config(self.vocab_size)

    def config(self, vocab_size: int, pad_id: int | None = None) -> DecoderConfig:
        """The model, for a tokenizer of this many pieces."""
        return DecoderConfig(**self._sizes(vocab_size, pad_id))

    def corpus(self) -> Corpus:
        """The text, in its three parts.

        Raises:
            DataError: it cannot be read.
        """
        return load_king_james() if self.text is None else load_text(self.text)

    def tokenizer(self, corpus: Corpus) -> Tokenizer:
        """A tokenizer trained on the training part.

        Raises:
            TokenizerError: the text cannot fill ``vocab_size``, or needs more.
        """
        return train_tokenizer(corpus.train, self.vocab_size)

    def trainer(self, corpus: Corpus, tokenizer: Tokenizer, device: torch.device) -> Trainer:
        """A trainer at step 0. Torch's global random numbers start from the seed.

        Raises:
            DataError: windows that do not fit the text.
            ConfigError: a precision that the device cannot train in.
        """
        stride = self.length if self.stride is None else self.stride
        views = windows(tokenizer.encode_stream(corpus.train), self.length, stride)
        dev_ids = tokenizer.encode_stream(corpus.dev)

        def dev_loss(model: nn.Module) -> float:
            return evaluate_nll(model, dev_ids, window=self.length).nll

        torch.manual_seed(self.seed)
        model = Decoder(self.config(tokenizer.vocab_size, tokenizer.pad_id)).to(device)
        data = WindowBatches(views, self.batch_size, seed=self.seed)
        return Trainer(wrap(model), sharded(data), self.settings(), dev_loss=dev_loss)

    def filled(self) -> "Recipe":
        """The same recipe with the values in place that ``None`` stands for."""
        stride = self.length if self.stride is None else self.stride
        return dataclasses.replace(super().filled(), stride=stride)
