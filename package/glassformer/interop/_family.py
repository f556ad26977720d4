"""What one family of models needs: its config and its table, in both directions.

Book: evolution
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from glassformer.config import TransformerConfig
from glassformer.interop._settings import Settings
from glassformer.interop._tables import Table


def _none(config: Any) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of Hugging Face models.

    Args:
        config: the class of our configs.
        architecture: the class that their library builds from our files.
        read: our config from theirs.
        write: theirs from ours; whatever it leaves out is found by reading the result again.
        table: the names and layouts of the weights.
        prefix: what the model with a head puts before the names of the model without.
        doubles: names that may be there as well, with the name of the tensor they must equal; one
            that the table wants is filled from there when it is missing.
        computed: tensors that a file may hold and our models compute; the two must agree.
        ignored: patterns of names that a file may hold and our models have no use for: old buffers,
            and heads of pretraining.
        harmless: config keys that do not change what the model computes.

    Book: evolution
    """

    config: type[TransformerConfig]
    architecture: str
    read: Callable[[Settings], TransformerConfig]
    write: Callable[[Any], dict[str, Any]]
    table: Callable[[Any], Table]
    prefix: str = ""
    doubles: Callable[[Any], Mapping[str, str]] = _none
    computed: Callable[[Any], Mapping[str, Tensor]] = _none
    ignored: tuple[str, ...] = ()
    harmless: frozenset[str] = field(default_factory=frozenset)
