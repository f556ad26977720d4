"""A trained model prepared once for writing.

Book: kv_cache
"""

from glassformer.inference.prepared import PreparedDecoder, PreparedTranslator, prepare

__all__ = ["PreparedDecoder", "PreparedTranslator", "prepare"]
