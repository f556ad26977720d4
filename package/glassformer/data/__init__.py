"""From files to batches: text and parallel text, tokenizers, windows, pairs.

Book: training
"""

from glassformer.data.batches import TokenBudgetBatches, pad_batch, shuffled_batches
from glassformer.data.cmudict import PronouncingDictionary, load_cmudict, pronunciation_pairs
from glassformer.data.download import RemoteFile, data_root, fetch
from glassformer.data.examples import (
    LineEncoder,
    PairBatch,
    PairExamples,
    collate_pairs,
    encode_pairs,
)
from glassformer.data.grammar import AlignedTriple, generate_triples
from glassformer.data.king_james import load_king_james
from glassformer.data.multi30k import load_multi30k
from glassformer.data.pairs import (
    ParallelCorpus,
    load_pairs,
    load_tsv,
    read_pairs,
    read_tsv,
    split_pairs,
)
from glassformer.data.phrasebook import Phrase, load_phrasebook
from glassformer.data.tatoeba import load_tatoeba
from glassformer.data.text import (
    Corpus,
    load_text,
    load_tiny_shakespeare,
    read_lines,
    split_lines,
    split_of,
)
from glassformer.data.tokenizer import Tokenizer, extend_tokenizer, train_tokenizer
from glassformer.data.vocabulary import SymbolVocabulary
from glassformer.data.windows import Window, Windows, count_windows, windows

__all__ = [
    "AlignedTriple",
    "Corpus",
    "LineEncoder",
    "PairBatch",
    "PairExamples",
    "ParallelCorpus",
    "Phrase",
    "PronouncingDictionary",
    "RemoteFile",
    "SymbolVocabulary",
    "TokenBudgetBatches",
    "Tokenizer",
    "Window",
    "Windows",
    "collate_pairs",
    "count_windows",
    "data_root",
    "encode_pairs",
    "extend_tokenizer",
    "fetch",
    "generate_triples",
    "load_cmudict",
    "load_king_james",
    "load_multi30k",
    "load_pairs",
    "load_phrasebook",
    "load_tatoeba",
    "load_text",
    "load_tiny_shakespeare",
    "load_tsv",
    "pad_batch",
    "pronunciation_pairs",
    "read_lines",
    "read_pairs",
    "read_tsv",
    "shuffled_batches",
    "split_lines",
    "split_of",
    "split_pairs",
    "train_tokenizer",
    "windows",
]
