"""The recipe of a translator: from two files, or the name of a data set, to a trained model.

Book: translation
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import nn

from glassformer.config import EncoderDecoderConfig
from glassformer.data import (
    ParallelCorpus,
    Tokenizer,
    encode_pairs,
    load_cmudict,
    load_multi30k,
    load_pairs,
    load_tatoeba,
    pronunciation_pairs,
    train_tokenizer,
)
from glassformer.errors import ConfigError
from glassformer.models import EncoderDecoder
from glassformer.training.batches import PairBatches
from glassformer.training.distributed import sharded, shared_loss, wrap
from glassformer.training.loop import Schedule, Trainer
from glassformer.training.recipe import Recipe, RunRecipe

__all__ = ["DataSetName", "PairRecipe", "recipe_from_dict"]

DataSetName = Literal[
    "tatoeba-deu-eng",
    "tatoeba-eng-deu",
    "tatoeba-cmn-eng",
    "tatoeba-eng-cmn",
    "multi30k",
    "cmudict",
]


@dataclass(frozen=True, kw_only=True)
class PairRecipe(RunRecipe):
    """How to train a translator on pairs: the same recipe and machine give the same model.

    Both sides share one tokenizer and one embedding. Sources end with eos, targets go from bos to
    eos. The layers of the preset are half encoder, half decoder.

    Args:
        data: name of a data set; the two languages in its name are source and target. ``multi30k``
            goes from German to English, ``cmudict`` from letters to phones.
        source, target: instead of ``data``, paths of two UTF-8 texts whose lines belong together.
        length: tokens of a side, eos included; longer pairs are left out, of training and dev
            loss alike (:func:`glassformer.data.encode_pairs` counts them).
        max_tokens: of a micro-batch, both sides and their padding.
        warmup: a tenth of all steps when ``None``.

    All others are those of :class:`RunRecipe`.

    Raises:
        ConfigError: a value that makes no sense, or not exactly one of a name and two files.

    Source: Vaswani et al. 2017, section 5. Book: translation
    """

    data: DataSetName | None = None
    source: str | None = None
    target: str | None = None
    vocab_size: int = 4096
    max_tokens: int = 4096
    steps: int = 2000
    schedule: Schedule = "inverse_sqrt"
    dropout: float = 0.1
    label_smoothing: float = 0.1

    at_least_one: ClassVar[tuple[str, ...]] = ("length", "max_tokens", "save_every")
    warmup_share: ClassVar[int] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        files = self.source is not None and self.target is not None
        half = (self.source is None) != (self.target is None)
        if half or files == (self.data is not None):
            raise ConfigError(
                f"data={self.data!r}, source={self.source!r}, target={self.target!r}: give the "
                "name of a data set, or the paths of two files, a source and a target"
            )
        if self.data is not None and self.data not in get_args(DataSetName):
            raise ConfigError(f"data={self.data!r} may be {', '.join(get_args(DataSetName))}")
        self.config(self.vocab_size)

    def config(self, vocab_size: int, pad_id: int | None = None) -> EncoderDecoderConfig:
        """The model, for a tokenizer of this many pieces."""
        sizes = self._sizes(vocab_size, pad_id)
        return EncoderDecoderConfig(**{**sizes, "n_layers": sizes["n_layers"] // 2})

    def corpus(self, *, download: bool = False, accept_terms: bool = False) -> ParallelCorpus:
        """The pairs, in their three parts.

        Args:
            download: get the data set if it is not there yet.
            accept_terms: whether you may use Multi30k under its terms.

        Raises:
            DataError: they cannot be read, or the terms are not accepted.
        """
        if self.source is not None and self.target is not None:
            return load_pairs(self.source, self.target)
        loaders: dict[str | None, Callable[[], ParallelCorpus]] = {
            "tatoeba-deu-eng": lambda: load_tatoeba("deu-eng", download=download),
            "tatoeba-eng-deu": lambda: load_tatoeba("deu-eng", source="eng", download=download),
            "tatoeba-cmn-eng": lambda: load_tatoeba("cmn-eng", download=download),
            "tatoeba-eng-cmn": lambda: load_tatoeba("cmn-eng", source="eng", download=download),
            "multi30k": lambda: load_multi30k(accept_terms=accept_terms, download=download),
            "cmudict": lambda: _spoken(download),
        }
        return loaders[self.data]()

    def tokenizer(self, corpus: ParallelCorpus) -> Tokenizer:
        """One tokenizer, trained on both sides of the training part.

        Raises:
            TokenizerError: the text cannot fill ``vocab_size``, or needs more.
        """
        return train_tokenizer((side for pair in corpus.train for side in pair), self.vocab_size)

    def trainer(
        self, corpus: ParallelCorpus, tokenizer: Tokenizer, device: torch.device
    ) -> Trainer:
        """A trainer at step 0. Torch's global random numbers start from the seed.

        Raises:
            DataError: no pair is short enough.
            ConfigError: a precision that the device cannot train in.
        """
        train, dev = (
            PairBatches(
                encode_pairs(part, tokenizer, max_len=self.length),
                self.max_tokens,
                pad_id=tokenizer.pad_id,
                bos_id=tokenizer.bos_id,
                seed=self.seed,
            )
            for part in (corpus.train, corpus.dev)
        )

        def dev_loss(model: nn.Module) -> float:
            return shared_loss(model, dev).mean_nll

        torch.manual_seed(self.seed)
        model = EncoderDecoder(self.config(tokenizer.vocab_size, tokenizer.pad_id)).to(device)
        return Trainer(wrap(model), sharded(train), self.settings(), dev_loss=dev_loss)


def recipe_from_dict(data: dict[str, Any]) -> Recipe | PairRecipe:
    """The recipe, of whichever kind, whose ``to_dict`` gave these values.

    Raises:
        ConfigError: these are not the values of a recipe.

    Book: translation
    """
    return PairRecipe.from_dict(data) if "max_tokens" in data else Recipe.from_dict(data)


def _spoken(download: bool) -> ParallelCorpus:
    """CMUdict as text: a word, and its phones with spaces between them."""
    words = load_cmudict(download=download)
    train, dev, test = (
        tuple((word, " ".join(phones)) for word, phones in pronunciation_pairs(part))
        for part in (words.train, words.dev, words.test)
    )
    return ParallelCorpus(train, dev, test, attribution=words.attribution)
