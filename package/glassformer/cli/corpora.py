"""The texts of commands: those that were typed, or those that a model was trained on.

Book: training
"""

from pathlib import Path
from typing import Any, NamedTuple

from glassformer.data import Corpus, ParallelCorpus
from glassformer.errors import CheckpointError, ConfigError, DataError
from glassformer.models import Decoder, EncoderDecoder
from glassformer.training import PairRecipe, Recipe, read_record, recipe_from_dict

__all__ = ["Texts", "read_corpus", "recipe_of", "texts_of"]


class Texts(NamedTuple):
    """A corpus and what to call it."""

    name: str
    corpus: Any
    """A :class:`Corpus` for a language model, a :class:`ParallelCorpus` for a translator."""
    run: dict[str, Any] | None
    """The run that they are from, as its record has it; ``None`` for those that were typed."""


def recipe_of(folder: Path, remedy: str) -> Recipe | PairRecipe:
    """The recipe of the run in a folder.

    Raises:
        CheckpointError: it holds no run; what to do then is the ``remedy``.
    """
    run = read_record(folder).get("run")
    try:
        return recipe_from_dict(run if isinstance(run, dict) else {})
    except ConfigError as error:
        raise CheckpointError(
            f"{folder}: holds a model but no run of `glassformer train`; {remedy}"
        ) from error


def read_corpus(
    recipe: Recipe | PairRecipe, *, saved: bool, download: bool = False, accept_terms: bool = False
) -> Corpus | ParallelCorpus:
    """The text or the pairs of a recipe; files that a run was ``saved`` with may have moved since.

    Raises:
        DataError: they cannot be read.
    """
    try:
        if isinstance(recipe, PairRecipe):
            return recipe.corpus(download=download, accept_terms=accept_terms)
        return recipe.corpus()
    except DataError as error:
        said = str(error)
        for switch in ("download", "accept_terms"):
            said = said.replace(f"{switch}=True", f"--{switch.replace('_', '-')}")
        files = {name: getattr(recipe, name, None) for name in ("text", "source", "target")}
        lost = [f"--{name}" for name, path in files.items() if path and not Path(path).exists()]
        if saved and lost:
            said += f"; if the text has moved, say where with {' and '.join(lost)}"
        raise DataError(said) from error


def texts_of(
    folder: Path,
    model: Decoder | EncoderDecoder,
    *,
    text: Path | None,
    source: Path | None,
    target: Path | None,
    download: bool,
    accept_terms: bool,
) -> Texts:
    """The text or pairs that were typed, else those of the run in ``folder``.

    Raises:
        CheckpointError: none were typed and the folder holds no run, or one of the other kind.
        ConfigError: what was typed is not for this kind of model.
        DataError: they cannot be read.
    """
    translates = isinstance(model, EncoderDecoder)
    if (text if translates else source or target) is not None:
        found, wanted = (
            ("an EncoderDecoder", "--source and --target")
            if translates
            else ("a Decoder", "--text")
        )
        raise ConfigError(f"{folder}: holds {found}; give {wanted}")
    if (source is None) != (target is None):
        raise ConfigError("pairs have two sides; give both --source and --target")
    typed = text is not None or source is not None
    recipe: Recipe | PairRecipe
    if source is not None and target is not None:
        recipe = PairRecipe(source=str(source), target=str(target))
    elif text is not None:
        recipe = Recipe(text=str(text))
    else:
        recipe = recipe_of(folder, f"give {'--source and --target' if translates else '--text'}")
        if isinstance(recipe, PairRecipe) != translates:
            raise CheckpointError(f"{folder}: its run belongs to another model; train it again")
    corpus = read_corpus(recipe, saved=not typed, download=download, accept_terms=accept_terms)
    run = None if typed else recipe.to_dict()
    if isinstance(recipe, PairRecipe):
        return Texts(recipe.data or f"{recipe.source}, {recipe.target}", corpus, run)
    return Texts(recipe.text or "King James Bible", corpus, run)
