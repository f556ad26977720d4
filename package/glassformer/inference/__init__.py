"""A trained decoder prepared once for writing.

Book: kv_cache
"""

from glassformer.inference.decoder import PreparedDecoder, prepare

__all__ = ["PreparedDecoder", "prepare"]
