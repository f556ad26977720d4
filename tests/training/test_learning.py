"""From pairs to a model that answers new ones: all of training together."""

import torch
from glassformer import EncoderDecoder, EncoderDecoderConfig
from glassformer.data import PairExamples
from glassformer.generation import generate
from glassformer.training import PairBatches, Trainer, TrainSettings, total_loss

PAD, BOS, EOS = 0, 2, 3


def reversed_words(words):
    sources = [[*word, EOS] for word in words]
    return PairExamples(sources, [[*word[::-1], EOS] for word in words])


def words(n, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (n,), generator=generator).tolist()
    return [torch.randint(4, 11, (length,), generator=generator).tolist() for length in lengths]


def test_a_translator_learns_to_reverse_words_it_has_never_seen(no_shape_checks):
    torch.manual_seed(0)
    model = EncoderDecoder(
        EncoderDecoderConfig(
            vocab_size=11, max_len=7, d_model=48, n_heads=3, n_layers=1, d_ff=67, pad_id=PAD
        )
    )
    new = [word for word in words(60, seed=1) if len(word) == 4]  # of 2401 such words
    seen = [word for word in words(700, seed=2) if word not in new]
    data, dev = (
        PairBatches(reversed_words(part), 601, pad_id=PAD, bos_id=BOS) for part in (seen, new)
    )
    settings = TrainSettings(
        steps=300, lr=5e-3, warmup=30, weight_decay=0.01, label_smoothing=0.05, eval_every=100
    )
    trainer = Trainer(model, data, settings, dev_loss=lambda model: total_loss(model, dev).mean_nll)
    before = trainer.evaluate()
    list(trainer.run())
    assert before > 2.0
    assert trainer.history[-1].dev_loss < 0.2
    sources = [[*word, EOS] for word in new]
    answers = generate(model, sources, max_new_tokens=6, bos_id=BOS, stop_ids=[EOS], pad_id=PAD)
    right = sum(a == [*w[::-1], EOS] for a, w in zip(answers.to_lists(), new, strict=True))
    assert right > 0.8 * len(new)
