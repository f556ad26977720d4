"""Which part of a corpus a text belongs to.

Book: translation
"""

import hashlib
from typing import Literal

__all__ = ["Split", "split_by_md5"]

Split = Literal["train", "dev", "test"]


def split_by_md5(text: str) -> Split:
    """2 % test, 1 % dev, the rest train, by the MD5 of the text. Book: translation"""
    digest = hashlib.md5(text.encode("utf-8"), usedforsecurity=False).digest()
    bucket = int.from_bytes(digest, "big") % 1000
    return "test" if bucket < 20 else "dev" if bucket < 30 else "train"
