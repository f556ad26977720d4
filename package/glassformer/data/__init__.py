"""From files to batches: text, tokenizer, windows.

Book: training
"""

from glassformer.data.batches import TokenBudgetBatches, pad_batch, shuffled_batches
from glassformer.data.download import RemoteFile, data_root, fetch
from glassformer.data.king_james import load_king_james
from glassformer.data.text import (
    Corpus,
    load_text,
    load_tiny_shakespeare,
    read_lines,
    split_lines,
    split_of,
)
from glassformer.data.tokenizer import Tokenizer, train_tokenizer
from glassformer.data.windows import Window, Windows, count_windows, windows

__all__ = [
    "Corpus",
    "RemoteFile",
    "TokenBudgetBatches",
    "Tokenizer",
    "Window",
    "Windows",
    "count_windows",
    "data_root",
    "fetch",
    "load_king_james",
    "load_text",
    "load_tiny_shakespeare",
    "pad_batch",
    "read_lines",
    "shuffled_batches",
    "split_lines",
    "split_of",
    "train_tokenizer",
    "windows",
]
