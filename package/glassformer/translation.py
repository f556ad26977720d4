"""A model and its tokenizer, from text to text.

Book: assembling
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import torch

from glassformer.data.batches import TokenBudgetBatches
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import CheckpointError, GenerationError, TokenizerError
from glassformer.evaluation.mode import device_of
from glassformer.generation import beam_search
from glassformer.models import Decoder, EncoderDecoder
from glassformer.training.checkpoint import load_model, load_tokenizer

__all__ = ["Translation", "Translator", "load_translator"]


@dataclass(frozen=True)
class Translation:
    """One way to say it.

    Book: assembling
    """

    text: str
    score: float
    """Log-probability over a power of the length: what beam search compares."""
    stopped: bool
    """False where the text met the limit before it came to an end."""


class Translator:
    """Translate text with a trained encoder-decoder.

    Args:
        model: trained on sources that end with eos, and targets from bos to eos.
        tokenizer: the one of the training, for both sides.

    Raises:
        TokenizerError: the model has another vocabulary than the tokenizer.

    Book: assembling
    """

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer) -> None:
        sizes = {model.config.vocab_size, model.config.source_vocab_size or tokenizer.vocab_size}
        if sizes != {tokenizer.vocab_size}:
            raise TokenizerError(
                f"a tokenizer of {tokenizer.vocab_size} pieces for a model of "
                f"{model.config.vocab_size}; give the tokenizer that the model was trained with"
            )
        self.model = model
        self.tokenizer = tokenizer

    @overload
    def translate(
        self,
        text: str,
        *,
        n_beams: int = 4,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        max_tokens: int = 2048,
    ) -> str: ...

    @overload
    def translate(
        self,
        text: list[str],
        *,
        n_beams: int = 4,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        max_tokens: int = 2048,
    ) -> list[str]: ...

    def translate(
        self,
        text: str | list[str],
        *,
        n_beams: int = 4,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        max_tokens: int = 2048,
    ) -> str | list[str]:
        """The best translation of a text, or of each of many; one string gives one string.

        Texts of similar length share a batch and come back in their own order. What a text
        becomes does not depend on the others. A text without letters or marks stays empty. What the
        tokenizer has no piece for is read byte by byte, so a text in an alphabet that the model
        was not trained on is no error: it gets a guess, of which nothing is to be expected.

        Args:
            text: one sentence, or a list of them.
            n_beams, length_penalty: as in :func:`glassformer.generation.beam_search`.
            max_new_tokens: the most tokens of a translation; as many as the model has room for
                when ``None``.
            max_tokens: source tokens of a batch, padding included.

        Raises:
            GenerationError: a text longer than the model reads, or options that make no sense.
        """
        many = [text] if isinstance(text, str) else text
        found = self.n_best(
            many,
            n_best=1,
            n_beams=n_beams,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
            max_tokens=max_tokens,
        )
        best = [translations[0].text for translations in found]
        return best[0] if isinstance(text, str) else best

    def n_best(
        self,
        texts: Sequence[str],
        *,
        n_best: int,
        n_beams: int = 4,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        max_tokens: int = 2048,
    ) -> list[list[Translation]]:
        """Up to ``n_best`` translations of each text, the best first; see :meth:`translate`.

        Raises:
            GenerationError: as :meth:`translate`, or fewer beams than ``n_best``.
        """
        if isinstance(texts, str):
            raise GenerationError("n_best takes a list of texts; give [text]")
        texts = list(texts)
        found: list[list[Translation]] = [[Translation("", 0.0, True)] for _ in texts]
        places = [place for place, text in enumerate(texts) if text.strip()]
        sources = [self._source(texts[place]) for place in places]
        if not sources:
            return found
        limit = self.model.config.max_len - 1  # bos takes a place too
        for batch in TokenBudgetBatches([len(source) for source in sources], max_tokens).epoch(0):
            results = beam_search(
                self.model,
                [sources[i] for i in batch],
                n_beams=n_beams,
                n_best=n_best,
                max_new_tokens=limit if max_new_tokens is None else max_new_tokens,
                length_penalty=length_penalty,
                bos_id=self.tokenizer.bos_id,
                stop_ids=[self.tokenizer.eos_id],
            )
            for i, hypotheses in zip(batch, results, strict=True):
                found[places[i]] = [
                    Translation(self.tokenizer.decode(h.tokens), h.score, h.stopped)
                    for h in hypotheses
                ]
        return found

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return device_of(self.model)

    def _source(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text, eos=True)
        if len(ids) > self.model.config.max_len:
            raise GenerationError(
                f"a text of {len(ids)} tokens, and this model reads at most "
                f"{self.model.config.max_len}; split it into sentences: {text[:40]!r}"
            )
        return ids


def load_translator(folder: str | Path, *, device: str | torch.device = "cpu") -> Translator:
    """The translator that a training run saved in ``folder``.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of another kind of model.

    Book: assembling
    """
    model = load_model(folder, device=device)
    if not isinstance(model, EncoderDecoder):
        raise CheckpointError(
            f"{folder}: holds {'a Decoder' if isinstance(model, Decoder) else 'an Encoder'}, which "
            "does not translate; give the folder of an EncoderDecoder"
        )
    return Translator(model, load_tokenizer(folder))
