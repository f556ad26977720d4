"""What the caches share: their bytes, and what does not fit into them.

Book: kv_cache
"""

from torch import Tensor

from glassformer.errors import CacheError


def bytes_of(*tensors: Tensor) -> int:
    """Bytes of the numbers of ``tensors``. Book: kv_cache"""
    return sum(t.numel() * t.element_size() for t in tensors)


def check_fits(new: Tensor, kept: Tensor) -> None:
    """Refuse heads of another model and rows of another batch. Book: kv_cache"""
    if (new.shape[1], new.shape[3]) != (kept.shape[1], kept.shape[3]):
        raise CacheError(
            f"this cache holds {kept.shape[1]} heads of width {kept.shape[3]} and was given "
            f"{new.shape[1]} of {new.shape[3]}; make one with this model's new_cache()"
        )
    if new.shape[0] != kept.shape[0]:
        raise CacheError(
            f"this cache holds {kept.shape[0]} rows and was given {new.shape[0]}; "
            "make one cache per batch, or reorder it to the new rows"
        )
