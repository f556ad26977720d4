"""Checks for the exercises of the chapter ``assembling``."""

import contextlib
import math
import numbers
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.config import DecoderConfig, EncoderDecoderConfig, llama_7b
from glassformer.costs import forward_flops, parameter_count
from glassformer.exercises import exercise, expect, expect_close
from glassformer.models import EncoderDecoder

__all__: list[str] = []


@exercise("assembling.count", minutes=15, level="medium")
def count(learner: Any) -> None:
    """The parameters of a decoder without biases, with gates and fewer key heads."""

    def config(kv: int, d_ff: int, layers: int, vocab: int) -> DecoderConfig:
        return DecoderConfig(
            vocab_size=vocab,
            max_len=8,
            d_model=12,
            n_heads=6,
            n_kv_heads=kv // 2,
            n_layers=layers,
            d_ff=d_ff,
            activation="swiglu",
            norm="rms",
            bias=False,
            tie_embeddings=False,
        )

    def given(kv: int, d_ff: int, layers: int, vocab: int) -> tuple[str, int, int]:
        fed = f"vocab={vocab}, d=12, layers={layers}, d_ff={d_ff}, kv={kv}"
        built = parameter_count(config(kv, d_ff, layers, vocab))
        return fed, built, _whole_number(learner(vocab, 12, layers, d_ff, kv), fed)

    sizes = (6, 31, 3, 7)
    fed, built, got = given(*sizes)
    one_word_more = given(6, 31, 3, 8)[2] - got
    expect(
        one_word_more == 2 * 12,
        "a word has a row in the table and a row in the head",
        fed=f"{fed}; then one word more",
        expected="2 d = 24 parameters more",
        got=f"{one_word_more} more",
        hint="The head is not tied to the table here. Neither has a bias.",
    )
    wider = given(6, 32, 3, 7)[2] - got
    expect(
        wider == 3 * 3 * 12,
        "a gated network has three matrices",
        fed=f"{fed}; then d_ff one larger",
        expected="3 d = 36 more in each of 3 layers, 108 in all",
        got=f"{wider} more",
        hint="gate and up go from d to d_ff, down goes from d_ff to d, and none has a bias.",
    )
    more_keys = given(12, 31, 3, 7)[2] - got
    expect(
        more_keys == 3 * 2 * 12 * 6,
        "keys and values have their own width",
        fed=f"{fed}; then kv=12",
        expected="2 d (12 - 6) = 144 more in each of 3 layers, 432 in all",
        got=f"{more_keys} more",
        hint="q and o are d by d; k and v are d by kv.",
    )
    deeper = given(6, 31, 4, 7)[2] - got
    layer = 2 * 12 * 12 + 2 * 12 * 6 + 3 * 12 * 31 + 2 * 12
    expect(
        deeper == layer,
        "a layer has its two norms, and attention has q, k, v and o",
        fed=f"{fed}; then one layer more",
        expected=f"2 d² + 2 d kv + 3 d d_ff + 2 d = {layer:,} more",
        got=f"{deeper:,} more",
        hint="RMSNorm has one number for each feature, and a layer has two of them.",
    )
    expect(
        got == built,
        "what is there once is counted once",
        fed=fed,
        expected=f"{built:,}, as the model has that is built of it",
        got=f"{got:,}",
        hint="Besides the layers: two tables, and the closing norm.",
    )
    llama = llama_7b()
    known = parameter_count(llama)
    theirs = _whole_number(learner(32_000, 4096, 32, 11_008, 4096), "LLaMA 7B")
    expect(
        theirs == known,
        "LLaMA 7B has 6,738,415,616",
        fed="vocab=32000, d=4096, layers=32, d_ff=11008, kv=4096",
        expected=f"{known:,}",
        got=f"{theirs:,}",
    )


def _whole_number(value: Any, fed: str) -> int:
    expect(
        isinstance(value, numbers.Real)
        and not isinstance(value, bool)
        and float(value).is_integer(),
        "the answer is a whole number",
        fed=fed,
        expected="an int",
        got=value,
    )
    return int(value)


@exercise("assembling.wiring", minutes=20, level="medium")
def wiring(learner: Any) -> None:
    """Three attentions of an encoder-decoder, and a mask for each."""
    config = EncoderDecoderConfig(
        vocab_size=11, max_len=8, d_model=12, n_heads=3, n_layers=2, positions="sinusoidal"
    )
    with torch.no_grad():
        model = EncoderDecoder(config).eval()
        for parameter in model.parameters():
            parameter.mul_(3.0)  # so that no path is too faint to be seen
        source, target = torch.randint(11, (2, 7)), torch.randint(11, (2, 5))
        real = torch.arange(7) < torch.tensor([[7], [4]])
        want = model(source, target, source_mask=real)
        fed = "source of shape (2, 7), of which row 1 has 3 tokens of padding, and target (2, 5)"
        got = learner(model, source, target, real)
        shape = tuple(got.shape) if isinstance(got, Tensor) else got
        expect(
            shape == (2, 5, 11),
            "there is a logit for each word at each target position",
            fed=fed,
            expected="(2, 5, 11)",
            got=shape,
        )
        later = target.clone()
        later[:, -1] = (later[:, -1] + 1) % 11
        leak = _moved(learner(model, source, later, real)[:, :-1], got[:, :-1])
        expect(
            leak < 1e-5,
            "a later target token changes nothing before it",
            fed=f"{fed}; then another last target token",
            expected="the logits of the first four positions stay",
            got=f"they move by up to {leak:.2g}",
            hint="The writer must not look ahead: the decoder stack takes is_causal=True.",
        )
        other = torch.where(real, source, (source + 1) % 11)
        leak = _moved(learner(model, other, target, real), got)
        expect(
            leak < 1e-5,
            "what stands in the padding changes nothing",
            fed=f"{fed}; then other ids in the padding",
            expected="all logits stay",
            got=f"they move by up to {leak:.2g}",
            hint="Two attentions can see the source: the reader's own (mask) and the bridge "
            "(memory_mask). Both need padding_mask(real).",
        )
        other = torch.where(real, (source + 1) % 11, source)
        heard = _moved(learner(model, other, target, real)[1], got[1])
        expect(
            heard > 1e-3,
            "the real source tokens are heard",
            fed=f"{fed}; then other ids where real is True",
            expected="the logits move",
            got="they stay as they are",
            hint="True means: may be looked at. Is a mask upside down?",
        )
        expect_close(
            "the logits are those of model(source, target, source_mask=real)",
            got,
            want,
            fed=fed,
            hint="Positions count from 0 on both sides, the reader looks in both directions, and "
            "the padding mask has the shape (batch, 1, 1, source), so that it holds for all heads "
            "and all queries.",
            atol=1e-4,
        )


def _moved(after: Tensor, before: Tensor) -> float:
    return float((after - before).abs().max())


_DRAWS: dict[str, Callable[[], float]] = {
    "Python": random.random,
    "NumPy": lambda: float(np.random.rand()),
    "PyTorch": lambda: float(torch.rand(())),
}


@contextlib.contextmanager
def _states_put_back() -> Iterator[None]:
    kept = random.getstate(), np.random.get_state()
    random.seed(5)
    np.random.seed(5)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])


@exercise("assembling.with_seed", minutes=20, level="medium")
def with_seed(learner: Any) -> None:
    """A seed for three libraries that leaves their generators where they were."""
    with _states_put_back():
        for library, draw in _DRAWS.items():
            _repeats(learner, library, draw)
        for library, draw in _DRAWS.items():
            _does_not_spill(learner, library, draw)


def _repeats(learner: Any, library: str, draw: Callable[[], float]) -> None:
    first = learner(7, draw)
    draw()  # the caller goes on in between
    again = learner(7, draw)
    expect(
        isinstance(first, float),
        "the answer is what make() returns",
        fed=f"seed 7 and a make() that draws one number from {library}",
        expected="a float",
        got=first,
        hint="return make(), after seeding.",
    )
    expect(
        first == again,
        f"the same seed draws the same numbers: {library}",
        fed=f"seed 7 and a make() that draws one number from {library}, twice",
        expected="the same number both times",
        got=f"{first:.4f} and {again:.4f}",
        hint="random.seed, np.random.seed, torch.manual_seed: three libraries, three seeds.",
    )
    other = learner(8, draw)
    expect(
        first != other,
        f"another seed draws other numbers: {library}",
        fed="seeds 7 and 8",
        expected="two different numbers",
        got=f"{first:.4f} both times",
        hint="Is the seed passed on, or a constant?",
    )


def _does_not_spill(learner: Any, library: str, draw: Callable[[], float]) -> None:
    def from_the_top() -> None:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        for each in _DRAWS.values():
            each()  # so that to sow the caller's seed once more is not to go on

    def fails() -> float:
        draw()
        raise ValueError("a make() that fails")

    from_the_top()
    want = draw()
    from_the_top()
    learner(7, draw)
    got = draw()
    expect(
        got == want,
        f"the caller's own numbers go on as if nothing had happened: {library}",
        fed=f"a caller that draws from {library} after the call",
        expected=f"{want:.4f}, as without the call",
        got=f"{got:.4f}",
        hint="Take the state before seeding, and put it back at the end.",
    )
    from_the_top()
    raised = False
    try:
        learner(7, fails)
    except Exception:
        raised = True
    got = draw()
    expect(
        raised,
        "an error of make() reaches the caller",
        fed="a make() that raises ValueError",
        expected="the same error",
        got="none",
        hint="try and finally, without except.",
    )
    expect(
        got == want,
        f"the state is put back where make() raises: {library}",
        fed=f"a make() that raises; then the caller draws from {library}",
        expected=f"{want:.4f}",
        got=f"{got:.4f}",
        hint="What stands in finally is done in any case.",
    )


@exercise("assembling.price", minutes=10, level="easy")
def price(learner: Any) -> None:
    """The operations of one pass of an encoder-decoder."""

    def both(source: int, target: int, vocab: int = 7) -> tuple[int, int]:
        config = EncoderDecoderConfig(
            vocab_size=vocab, max_len=64, d_model=12, n_heads=3, n_layers=2, d_ff=31
        )
        fed = f"d=12, d_ff=31, layers=2, vocab={vocab}, source={source}, target={target}"
        got = _whole_number(learner(12, 31, 2, vocab, source, target), fed)
        return got, forward_flops(config, 1, target, source_length=source)

    fed = "d=12, d_ff=31, layers=2, vocab=7, source=5, target=3"
    got, want = both(5, 3)
    expect(
        2 * got != want,
        "the unit is FLOPs: two for a multiply-add",
        fed=fed,
        expected=f"{want:,}",
        got=f"{got:,}, half of it",
        hint="The formulas of the articles count multiply-adds.",
    )
    more = both(5, 3, vocab=8)[0] - got
    expect(
        more == 2 * 3 * 12,
        "every target position asks every word of the vocabulary",
        fed=f"{fed}; then vocab=8",
        expected="2 · target · d = 72 more",
        got=f"{more:,} more",
        hint="The head is a product of (target, d) with (d, vocab): two FLOPs a multiply-add.",
    )
    for which, lengths in (("source", (6, 3)), ("target", (5, 4))):
        more, wanted = (a - b for a, b in zip(both(*lengths), (got, want), strict=True))
        expect(
            more == wanted,
            f"one {which} token more costs what it costs",
            fed=f"{fed}; then {which} one longer",
            expected=f"{wanted:,} more",
            got=f"{more:,} more",
            hint="On the bridge, q and o see the target, k and v the source, and the scores are "
            "target by source: 2 T d² + 2 S d² + 2 T S d multiply-adds a layer.",
        )
    expect(
        got == want,
        "the sum is what the counter shows",
        fed=fed,
        expected=f"{want:,}",
        got=f"{got:,}",
    )


@exercise("assembling.start", minutes=10, level="easy")
def start(learner: Any) -> None:
    """The spread of a head that starts near ln V at any width."""
    for d, excess in ((64, 0.05), (256, 0.05), (2048, 0.05), (256, 0.2)):
        std = learner(d, excess)
        fed = f"d={d}, excess={excess}"
        expect(
            isinstance(std, int | float | Tensor) and float(std) > 0,
            "the answer is a positive number",
            fed=fed,
            expected="a standard deviation",
            got=std,
        )
        hidden = F.layer_norm(torch.randn(400, d), (d,))
        logits = hidden @ (torch.randn(d, 500) * float(std))
        above = float(logits.logsumexp(-1).mean() - logits.mean()) - math.log(500)
        expect(
            abs(above - excess) < 0.15 * excess,
            "the first loss is that far above ln V",
            fed=f"{fed}: 400 vectors out of a norm, a head of 500 words with your spread",
            expected=f"ln 500 + {excess}",
            got=f"ln 500 + {above:.3f}",
            hint="The loss starts at about ln V + d σ² / 2: four times the width needs half the "
            "spread.",
        )
