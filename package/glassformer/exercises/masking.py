"""Checks for the exercises of the chapter ``masking``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.exercises import Failed, describe, exercise, expect, expect_close
from glassformer.exercises.clinic import ILLNESSES, Patient, patients
from glassformer.functional import (
    attend,
    causal_mask,
    combine_masks,
    padding_mask,
    sliding_window_mask,
    token_mask_from_lengths,
)

__all__: list[str] = []

_SIGNS = {
    "healthy": "Something about this one is not as it should be on this input. Compare it with "
    "attend, first without a mask and then with one.",
    "polarity": "With polarity reversed a query sees exactly what it should not, and nothing else.",
    "wrong axis": "With the padding laid over the queries, a padded query gets zeros, and a padded "
    "key is seen by all others.",
    "zeros instead of -inf": "A hidden key with a score of 0 keeps a say of e^0 = 1: change its "
    "value and outputs move, change the key itself and none does.",
    "mask after softmax": "A hidden key then still counts under the fraction line: change the key "
    "and outputs move, change its value and none does. Values of 1 average to less than 1.",
    "-1e9 in half precision": "In float32 this illness has no sign at all.",
    "blind rows": "Only a query that may see nothing shows this illness; every other output is "
    "right.",
    "cache offset": "With as many queries as keys this illness has no sign, and without is_causal "
    "neither.",
    "padding from the target": "This one reads q_real. Without it, or where q_real equals k_real, "
    "it has no sign.",
}


@dataclass(frozen=True, kw_only=True)
class _Probe:
    """One input for an attention, and how to name it."""

    text: str
    inputs: tuple[Tensor, Tensor, Tensor]
    q_real: Tensor | None = None
    k_real: Tensor | None = None
    is_causal: bool = False

    def of(self, attention: Callable[..., Any]) -> Tensor | str:
        """What comes out, or which error."""
        given = {"q_real": self.q_real, "k_real": self.k_real, "is_causal": self.is_causal}
        try:
            out: Tensor = attention(*(tensor.clone() for tensor in self.inputs), **given)
        except Exception as error:
            return type(error).__name__
        return out


def _probes() -> list[_Probe]:
    """Inputs that tell every illness from every other."""

    def qkv(
        q_len: int, k_len: int, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (torch.randn(2, 3, n, width) for n, width in ((q_len, 7), (k_len, 7), (k_len, 2)))
        return q.to(dtype), k.to(dtype), v.to(dtype)

    right = token_mask_from_lengths(torch.tensor([5, 3]))
    return [
        _Probe(text="5 tokens, no mask at all", inputs=qkv(5, 5)),
        _Probe(text="5 tokens, is_causal", is_causal=True, inputs=qkv(5, 5)),
        _Probe(text="2 queries, 5 keys, is_causal", is_causal=True, inputs=qkv(2, 5)),
        _Probe(
            text="5 tokens; sample 1 has 3 real ones (q_real and k_real)",
            q_real=right,
            k_real=right,
            inputs=qkv(5, 5),
        ),
        _Probe(
            text="4 queries, 5 keys; sample 1 has 3 real keys (k_real) and 2 real queries (q_real)",
            q_real=token_mask_from_lengths(torch.tensor([4, 2])),
            k_real=right,
            inputs=qkv(4, 5),
        ),
        _Probe(
            text="5 tokens, is_causal; the first 2 of sample 1 are padding",
            q_real=right.flip(1),
            k_real=right.flip(1),
            is_causal=True,
            inputs=qkv(5, 5),
        ),
        _Probe(
            text="5 tokens in float16, is_causal", is_causal=True, inputs=qkv(5, 5, torch.float16)
        ),
    ]


def _place_apart(one: Tensor | str, two: Tensor | str) -> tuple[int, ...] | None:
    """Sample, head and query where two outcomes part; () if they cannot be compared; else None."""
    if isinstance(one, str) or isinstance(two, str):
        return None if isinstance(one, str) and isinstance(two, str) and one == two else ()
    loose = 2e-2 if one.dtype == torch.float16 else 1e-4
    apart = ~torch.isclose(one.float(), two.float(), atol=loose, rtol=loose, equal_nan=True)
    return tuple(apart.any(-1).nonzero()[0].tolist()) if apart.any() else None


@exercise("masking.clinic", minutes=30, level="medium")
def clinic(learner: Any) -> None:
    """A diagnosis for each of the nine patients."""
    known = patients()
    expect(
        isinstance(learner, dict) and set(learner) == set(known),
        "there is a diagnosis for each of the nine patients",
        fed="the dictionary of your diagnoses",
        expected=f"the keys {', '.join(known)}",
        got=", ".join(map(str, learner)) if isinstance(learner, dict) else describe(learner),
        hint="Letters as keys, diagnoses as values.",
    )
    for name, diagnosis in learner.items():
        expect(
            diagnosis in ILLNESSES,
            f"the diagnosis of patient {name} is one of the list",
            fed="the dictionary of your diagnoses",
            expected=", ".join(ILLNESSES),
            got=describe(diagnosis),
            hint="Letter by letter as in exercises.ILLNESSES.",
        )
    probes = _probes()
    refuted = {}
    for name, patient in known.items():
        for probe in probes:
            claimed, seen = probe.of(Patient(name, learner[name])), probe.of(patient)
            place = _place_apart(claimed, seen)
            if place is not None:
                refuted[name] = (probe, claimed, seen, place)
                break
    for name, (probe, claimed, seen, place) in refuted.items():
        sample_head_query = "; sample {}, head {}, query {}".format(*place) if place else ""
        raise Failed(
            f"patient {name} behaves as you diagnosed",
            fed=f"{probe.text}{sample_head_query}",
            expected=f"'{learner[name]}' would give {_at(claimed, place)}",
            got=f"{_at(seen, place)}. {len(known) - len(refuted)} of 9 diagnoses stand",
            hint=_SIGNS[learner[name]],
        )


def _at(outcome: Tensor | str, place: tuple[int, ...]) -> str:
    """One output of two numbers, or an error."""
    if isinstance(outcome, str):
        return f"a {outcome}"
    return describe(outcome[place]).partition(" (")[0] if place else "no error"


@exercise("masking.gatekeeper", minutes=25, level="hard")
def gatekeeper(learner: Any) -> None:
    """A test that lets healthy attentions pass and stops the eight illnesses."""
    healthy = {
        "the healthy patient": Patient("healthy", "healthy"),
        "the package's attend, by steps": _sound(eager=True),
        "the package's attend, fused": _sound(eager=False),
    }
    for name, attention in healthy.items():
        verdict = learner(attention)
        expect(
            isinstance(verdict, bool | Tensor),
            "the test answers True or False",
            fed=name,
            expected="True",
            got=verdict,
            hint="Return one bool: True for an attention that may pass.",
        )
        expect(
            bool(verdict),
            "a healthy attention passes",
            fed=name,
            expected="True",
            got=verdict,
            hint="Two sound ways of computing differ in the last digits: compare with "
            "torch.allclose, in float16 with atol=0.01. A query that may see nothing gives zeros.",
        )
    for illness, ailment in ILLNESSES.items():
        if illness == "healthy":
            continue
        try:
            verdict = learner(Patient("somebody", illness))
        except Exception as error:
            cause = error.__cause__ or error
            raise Failed(
                "an attention that raises an error is refused",
                fed="an attention that raises an error on one of your inputs",
                expected="False",
                got=f"{type(cause).__name__}: {cause}",
                hint="Call it inside try, and return False on an exception.",
            ) from error
        expect(
            not bool(verdict),
            f"an attention is refused that {ailment}",
            fed="such an attention",
            expected="False",
            got=verdict,
            hint=_SIGNS[illness],
        )


def _sound(*, eager: bool) -> Callable[..., Tensor]:
    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        q_real: Tensor | None = None,
        k_real: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        mask = combine_masks(
            causal_mask(q.shape[2], k.shape[2]) if is_causal else None,
            None if k_real is None else padding_mask(k_real),
        )
        return attend(q, k, v, mask=mask, eager=eager)

    return attention


@exercise("masking.translate", minutes=10, level="easy")
def translate(learner: Any) -> None:
    """Our mask in the words of nn.MultiheadAttention."""
    lengths, n_heads = torch.tensor([5, 2, 3]), 2
    mask = causal_mask(5) & padding_mask(token_mask_from_lengths(lengths))
    fed = "a mask of shape (3, 1, 5, 5) for 3 samples, and 2 heads"
    got = learner(mask.clone(), n_heads)
    expect(
        isinstance(got, Tensor) and got.dtype == torch.bool,
        "the mask is boolean",
        fed=fed,
        expected="a tensor of torch.bool",
        got=got,
        hint="A float mask is added to the scores: 1 and 0 would hide nothing.",
    )
    expect(
        tuple(got.shape) == (6, 5, 5),
        "there is one table for each sample and head",
        fed=fed,
        expected="(6, 5, 5): samples times heads, queries, keys",
        got=str(tuple(got.shape)),
        hint="nn.MultiheadAttention has no axis for heads: sample 0 head 0, sample 0 head 1, "
        "sample 1 head 0, and so on.",
    )
    expect(
        not got[0].diagonal().any(),
        "True means hidden",
        fed=fed,
        expected="False on the diagonal of sample 0: a token sees itself",
        got="True there",
        hint="Our True means may attend. Invert it, here at the border.",
    )
    expect(
        torch.equal(got[0], ~mask[0, 0]),
        "a row is a query, a column is a key",
        fed=fed,
        expected="hidden, in sample 0: what stands above the diagonal",
        got=f"{int((got[0] != ~mask[0, 0]).sum())} of 25 entries of its first table are wrong",
        hint="Queries stay on the last axis but one and keys on the last, as in our mask.",
    )
    want = (~mask).repeat(1, n_heads, 1, 1).flatten(0, 1)
    expect_close(
        "the heads of one sample stand together",
        got.float(),
        want.float(),
        fed=fed,
        hint="repeat on axis 0 gives sample 0, 1, 2, 0, 1, 2. Needed: 0, 0, 1, 1, 2, 2.",
    )
    layer = nn.MultiheadAttention(8, n_heads, batch_first=True)
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        by_head = torch.equal(layer(x, x, x, attn_mask=got)[0], layer(x, x, x, attn_mask=want)[0])
    expect(by_head, "PyTorch's layer takes it", fed=fed, expected="the same output", got="another")


@exercise("masking.packed", minutes=15, level="medium")
def packed(learner: Any) -> None:
    """Several documents in one row, none of which sees another."""
    document = torch.tensor([[0, 0, 0, 1, 1, 2], [4, 4, 7, 7, -1, -1]])
    fed = "documents [[0, 0, 0, 1, 1, 2], [4, 4, 7, 7, -1, -1]]"
    mask = learner(document.clone())
    expect(
        isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.ndim == 4,
        "the mask is boolean with axes for samples, heads, queries and keys",
        fed=fed,
        expected="a tensor of torch.bool, (2, 1, 6, 6)",
        got=mask,
        hint="Compare document[:, None, :, None] with document[:, None, None, :].",
    )
    expect(
        tuple(mask.shape) == (2, 1, 6, 6),
        "the mask has one table for each sample, for all heads",
        fed=fed,
        expected="(2, 1, 6, 6)",
        got=str(tuple(mask.shape)),
        hint="None in an index makes an axis of length 1, which the heads share.",
    )
    future = mask & ~causal_mask(6)
    _none_of("nobody sees the future", future, fed, "Combine with causal_mask(T), by &.")
    same = (document[:, :, None] == document[:, None, :])[:, None]
    _none_of(
        "nobody sees another document",
        mask & ~same,
        fed,
        "Equal ids, not neighbouring ones: the condition compares the query's id with the key's.",
    )
    _none_of(
        "nobody attends to padding",
        mask & (document < 0)[:, None, None, :],
        fed,
        "-1 equals -1: padding would be a document of its own. Ask for a real key as well.",
    )
    want = causal_mask(6) & same & padding_mask(document >= 0)
    _none_of(
        "a token sees itself and what its document holds before it",
        want & ~mask,
        fed,
        "Which of your conditions hides too much? The diagonal belongs to it; ids may be any "
        "numbers from 0 on.",
    )


def _none_of(property: str, wrong: Tensor, fed: str, hint: str) -> None:
    places = wrong.nonzero().tolist()
    sample, _, query, key = places[0] if places else (0, 0, 0, 0)
    expect(
        not places,
        property,
        fed=fed,
        expected="0 such entries",
        got=f"{len(places)} such entries are wrong; the first in sample {sample}, query {query}, "
        f"key {key}",
        hint=hint,
    )


@exercise("masking.chunk", minutes=15, level="medium")
def chunk(learner: Any) -> None:
    """The permissions of new queries over cached and new keys, under a window."""
    for n_cached, n_new, window, why in (
        (0, 5, 9, "without a cache and with a wide window it is the causal mask"),
        (4, 3, 99, "the last query sees the last key"),
        (6, 1, 99, "a single new token sees everything before it"),
        (0, 6, 3, "a window of 3 is the token itself and two before it"),
        (4, 3, 3, "the window moves with the query, past the cache too"),
        (5, 2, 1, "a window of 1 leaves the token itself"),
    ):
        total = n_cached + n_new
        want = sliding_window_mask(n_new, window, total)
        fed = f"{n_cached} cached tokens, {n_new} new ones, a window of {window}"
        mask = learner(n_cached, n_new, window)
        expect(
            isinstance(mask, Tensor) and mask.dtype == torch.bool,
            "the mask is boolean",
            fed=fed,
            expected="a tensor of torch.bool",
            got=mask,
            hint="A comparison of positions is boolean by itself.",
        )
        expect(
            mask.shape == want.shape,
            "a row for each new token, a column for each key, cached ones first",
            fed=fed,
            expected=str(tuple(want.shape)),
            got=str(tuple(mask.shape)),
            hint="The new tokens are keys too.",
        )
        rows = [int(row) for row in (mask != want).any(-1).nonzero().flatten()]
        row = rows[0] if rows else 0
        expect(
            not rows,
            why,
            fed=f"{fed}; new token {row}",
            expected=f"keys {want[row].nonzero().flatten().tolist()}",
            got=f"keys {mask[row].nonzero().flatten().tolist()}",
            hint="New token i stands at position n_cached + i. It sees the keys from its position "
            "- window + 1 to its position.",
        )


@exercise("masking.pooled", minutes=15, level="medium")
def pooled(learner: Any) -> None:
    """The mean of the real tokens of each sentence."""
    x = torch.randn(3, 5, 2)
    real = token_mask_from_lengths(torch.tensor([5, 2, 3]))
    fed = "vectors of shape (3, 5, 2), with 5, 2 and 3 real tokens"
    want = torch.stack([row[keep].mean(0) for row, keep in zip(x, real, strict=True)])
    expect_close(
        "a sentence without padding is the plain mean",
        learner(x.clone(), torch.ones_like(real)),
        x.mean(1),
        fed="vectors of shape (3, 5, 2), all real",
        hint="Sum over the tokens, axis 1, and divide by their number.",
    )
    expect_close(
        "only real tokens count, above and below the fraction line",
        learner(x.clone(), real),
        want,
        fed=fed,
        hint="Padding must be left out of the sum, and the divisor is the number of real tokens "
        "of that sentence.",
    )
    loud = x.masked_fill(~real[..., None], float("nan"))
    expect_close(
        "whatever stands in the padding does not matter",
        learner(loud, real),
        want,
        fed=f"{fed}; NaN wherever a token is padding",
        hint="0 times NaN is NaN. masked_fill or torch.where replaces, a product does not.",
    )
    none = real.clone()
    none[1] = False
    expect_close(
        "a sentence without a real token gives zeros",
        learner(x.clone(), none)[1],
        torch.zeros(2),
        fed="sentence 1 has no real token",
        hint="The sum is 0 already. Keep the divisor from being 0: clamp(min=1).",
    )
    long = torch.full((1, 1000, 2), 100.0, dtype=torch.float16)
    expect_close(
        "a long sentence in half precision does not overflow",
        learner(long, torch.ones(1, 1000, dtype=torch.bool)),
        torch.full((1, 2), 100.0, dtype=torch.float16),
        fed="1,000 tokens of value 100, in float16",
        hint="Their sum, 100,000, is no float16. Sum in float32 and go back at the end.",
        atol=0.2,  # numbers near 100 are 1/16 apart
    )
