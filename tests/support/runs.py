"""Small training runs for tests."""

import hashlib

import torch
from glassformer import Decoder, EncoderDecoder
from glassformer.data import PairExamples, shuffled_batches, windows
from glassformer.training import Batch, PairBatches, Trainer, TrainSettings, WindowBatches
from support.core import decoder_config, translator_config


def tiny_decoder(seed=0, **changes):
    torch.manual_seed(seed)
    return Decoder(decoder_config(**changes))


def tiny_translator(seed=0, **changes):
    torch.manual_seed(seed)
    return EncoderDecoder(translator_config(**{"pad_id": 0, "n_layers": 1, **changes}))


def reversals(n=37, seed=3, longest=6):
    """Pairs of a sequence and its reversal, both with eos (3) at the end; ids 4 to 28."""
    generator = torch.Generator().manual_seed(seed)
    sources, targets = [], []
    for _ in range(n):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        ids = torch.randint(4, 29, (length,), generator=generator).tolist()
        sources.append([*ids, 3])
        targets.append([*ids[::-1], 3])
    return PairExamples(sources, targets)


def pair_data(n=37, seed=5, max_tokens=53, examples=None):
    examples = reversals(n) if examples is None else examples
    return PairBatches(examples, max_tokens, pad_id=0, bos_id=2, seed=seed)


def token_ids(n=211, seed=3):
    """A text with a rhythm, so that there is something to learn; without the padding id 0."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 3, (n,), generator=generator)
    return 1 + (torch.arange(n) * 5 + noise) % 28


def window_data(length=11, stride=7, batch_size=3, seed=5, n=211):
    return WindowBatches(windows(token_ids(n), length, stride), batch_size, seed=seed)


class NoisyData:
    """Ten micro-batches an epoch, whose tokens are changed at random whenever they are loaded.

    Keeps the numbers of the examples it has handed out.
    """

    fingerprint = "noisy"

    def __init__(self, n_items=29, batch_size=3):
        self.n_items, self.batch_size = n_items, batch_size
        self.seen = []

    def epoch(self, epoch):
        return shuffled_batches(self.n_items, self.batch_size, seed=1, epoch=epoch)

    def load(self, indices):
        self.seen.append(list(indices))
        rows = torch.tensor([[1 + (i + t) % 28 for t in range(8)] for i in indices])
        rows = torch.where(torch.rand(rows.shape) < 0.2, 7, rows)
        return Batch(rows[:, :-1], rows[:, 1:])


def make_trainer(data=None, *, model=None, dev_loss=None, dropout=0.1, **settings):
    """A trainer of a tiny decoder with dropout, the same at every call."""
    model = tiny_decoder(dropout=dropout) if model is None else model
    torch.manual_seed(1)
    settings = {"steps": 31, "lr": 1e-2, "warmup": 3, **settings}
    data = window_data() if data is None else data
    return Trainer(model, data, TrainSettings(**settings), dev_loss=dev_loss)


def weights_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def digest(model):
    """A hash of every bit of the weights."""
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode() + value.numpy().tobytes())
    return total.hexdigest()
