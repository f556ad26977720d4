"""Models of folders, for the commands that use one.

Book: training
"""

from pathlib import Path

from glassformer.data import Tokenizer
from glassformer.devices import pick_device
from glassformer.errors import CheckpointError
from glassformer.models import Decoder, Encoder, EncoderDecoder
from glassformer.training import load_model, load_tokenizer

__all__ = ["load_any", "load_decoder", "load_writer"]


def load_any(folder: Path, device: str) -> Decoder | Encoder | EncoderDecoder:
    """The model of a folder, on the device that was typed.

    Raises:
        CheckpointError: there is none, or it is damaged.
        GlassformerError: no such device.
    """
    return load_model(folder, device=pick_device(device, given_as="--device"))


def load_writer(folder: Path, device: str) -> tuple[Decoder | EncoderDecoder, Tokenizer]:
    """A language model or a translator, with its tokenizer.

    Raises:
        CheckpointError: as :func:`load_any`, or the folder holds a model that does not write.
    """
    model = load_any(folder, device)
    if isinstance(model, Encoder):
        raise CheckpointError(f"{folder}: holds an Encoder; this needs a model that writes")
    return model, load_tokenizer(folder)


def load_decoder(folder: Path, device: str) -> tuple[Decoder, Tokenizer]:
    """A language model with its tokenizer.

    Raises:
        CheckpointError: as :func:`load_any`, or the folder holds no language model.
    """
    model = load_any(folder, device)
    if not isinstance(model, Decoder):
        remedy = "; use `glassformer translate`" if isinstance(model, EncoderDecoder) else ""
        raise CheckpointError(
            f"{folder}: holds an {type(model).__name__}; this needs a Decoder{remedy}"
        )
    return model, load_tokenizer(folder)
