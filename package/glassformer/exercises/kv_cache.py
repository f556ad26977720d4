"""Checks for the exercises of the chapter ``kv_cache``."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.exercises import Failed, exercise, expect, expect_close

__all__: list[str] = []


@exercise("kv_cache.bound", minutes=10, level="easy")
def bound(learner: Any) -> None:
    """How fast a step can be that waits for memory."""

    def ask(rows: int, length: int) -> Any:
        return learner(6000, 100, 2, rows, length)

    def fed(rows: int, length: int) -> str:
        return (
            "6000 bytes a second, weights of 100 bytes, 2 bytes a token, "
            f"rows: {rows}, tokens in each cache: {length}"
        )

    cases = {
        "every step fetches all weights": (
            1,
            0,
            60.0,
            "One row, and nothing in its cache: how often can 100 bytes be fetched in a second?",
        ),
        "the cache is fetched too": (
            1,
            50,
            30.0,
            "50 tokens at 2 bytes each are as many bytes again as the weights.",
        ),
        "each row writes a token, and all share the weights": (
            10,
            0,
            600.0,
            "One fetch of the weights serves ten rows, and each writes a token of its own. "
            "Count the tokens of all rows.",
        ),
        "each row brings its own cache": (
            10,
            50,
            10 * 6000 / 1100,
            "Ten rows of 50 tokens: ten caches to fetch, and the weights once.",
        ),
    }
    for name, (rows, length, expected, hint) in cases.items():
        got = ask(rows, length)
        if not isinstance(got, int | float | Tensor):
            raise Failed(
                "the answer is a number",
                fed=fed(rows, length),
                expected=f"{expected:.1f}",
                got=got,
                hint="Tokens of all rows in a second.",
            )
        expect_close(
            name,
            torch.as_tensor(got, dtype=torch.float64),
            torch.tensor(expected, dtype=torch.float64),
            fed=fed(rows, length),
            hint=hint,
        )


class _Writer:
    """A model of the call ``model(tokens, past)`` whose every choice depends on all it has read."""

    def __init__(self) -> None:
        self.calls: list[Tensor] = []
        self.pasts: list[Any] = []

    def __call__(self, tokens: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        self.calls.append(tokens.clone())
        self.pasts.append(past)
        read = tokens if past is None else torch.cat((past[1], tokens), dim=1)
        sums = (read * torch.arange(1, read.shape[1] + 1)).cumsum(dim=1) % 31
        logits = torch.nn.functional.one_hot(sums, 31).float()
        logits = logits + 0.1 * torch.nn.functional.one_hot((sums + 5) % 31, 31)
        return logits[:, -tokens.shape[1] :], ("past", read)

    def right(self, prompt: Tensor, n_new: int) -> Tensor:
        read = prompt
        for _ in range(n_new):
            read = torch.cat((read, _Writer()(read)[0][:, -1].argmax(-1)[:, None]), dim=1)
        return read[:, prompt.shape[1] :]


@exercise("kv_cache.loop", minutes=15, level="medium")
def loop(learner: Any) -> None:
    """The loop of the article, repaired."""
    prompt, n_new = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]), 7
    model = _Writer()
    fed = "two prompts of 5 tokens, 7 new ones"
    got = learner(model, prompt.clone(), n_new)
    shapes = [tuple(call.shape) for call in model.calls]
    expect(
        bool(shapes) and shapes[0] == (2, 5),
        "the prompt is read in one call",
        fed=fed,
        expected="a first call with tokens of shape (2, 5)",
        got=f"shapes of the calls: {shapes[:4]}",
        hint="A prompt is known from its first token to its last. Give the model all of it.",
    )
    expect(
        all(past is not None and past[0] == "past" for past in model.pasts[1:]),
        "each call gets the past that the call before returned",
        fed=fed,
        expected="past as returned",
        got="past=None after the first call",
        hint="logits, past = model(tokens, past)",
    )
    expect(
        all(shape == (2, 1) for shape in shapes[1:]),
        "every later call reads one new token of each row",
        fed=fed,
        expected="tokens of shape (2, 1)",
        got=f"shapes of the calls: {shapes[:4]}",
        hint="What has been read is in the past; read again it would stand there twice.",
    )
    right = model.right(prompt, n_new)
    expect(
        len(model.calls) < 2 or torch.equal(model.calls[1], right[:, :1]),
        "what is read next is what was just chosen, by each row for itself",
        fed=fed,
        expected=str(right[:, :1].tolist()),
        got=str(model.calls[1].tolist()) if len(model.calls) > 1 else "no second call",
        hint="Choose from the logits of the last position, along the vocabulary: "
        "logits[:, -1].argmax(dim=-1) has one token for each row.",
    )
    if not isinstance(got, Tensor) or got.shape != (2, 7):
        raise Failed(
            "as many tokens as asked for, and without the prompt",
            fed=fed,
            expected="a tensor of shape (2, 7)",
            got=f"{type(got).__name__} of shape {tuple(getattr(got, 'shape', ()))}",
            hint="The first token comes out of the prefill, so there is one choice for each pass.",
        )
    expect_close(
        "the tokens are those of reading everything again",
        got,
        right,
        fed=fed,
        hint="Each token that is chosen must be read before the next is chosen.",
    )
    expect(
        len(model.calls) <= n_new,
        "the last token is not read",
        fed=fed,
        expected=f"{n_new} calls",
        got=f"{len(model.calls)} calls",
        hint="Nobody asks what follows it. Leave the loop before that call.",
    )


@exercise("kv_cache.static", minutes=15, level="medium")
def static(learner: Any) -> None:
    """Write into a buffer, and say which slots may be seen."""
    batch, heads, room, width, there, n_new = 2, 3, 11, 5, 4, 3
    buffer = torch.randn(batch, heads, room, width)
    old, new = buffer.clone(), torch.randn(batch, heads, n_new, width)
    fed = "a buffer with 11 slots, 4 of them written, and 3 new keys"
    mask = learner(buffer, there, new)
    expect_close(
        "the new keys stand behind the old ones",
        buffer[:, :, there : there + n_new],
        new,
        fed=fed,
        hint="Write in place: buffer[:, :, position : position + n_new] = new. The axis of the "
        "tokens is the third.",
    )
    untouched = [*range(there), *range(there + n_new, room)]
    expect_close(
        "all other slots are as before",
        buffer[:, :, untouched],
        old[:, :, untouched],
        fed=fed,
        hint="Only three slots change.",
    )
    right = torch.arange(room) <= there + torch.arange(n_new)[:, None]
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (n_new, room):
        raise Failed(
            "the mask has a row for each new token and a column for each slot",
            fed=fed,
            expected="a boolean tensor of shape (3, 11)",
            got=mask,
            hint="Attention gets the whole buffer, so the mask is as wide as the buffer.",
        )
    places = torch.arange(room)
    expect(
        not bool((mask & (places >= there + n_new)).any()),
        "slots that nobody has written are hidden",
        fed=fed,
        expected="False from slot 7 on",
        got=f"True in slots {sorted(set(mask.nonzero()[:, 1].tolist()) - set(range(7)))}",
        hint="They hold zeros, and a zero key has a score of 0, not of -inf.",
    )
    expect(
        bool(mask.diagonal(offset=there).all()),
        "each new token sees itself",
        fed=fed,
        expected="new token i sees slot 4 + i",
        got=str(mask.int().tolist()),
        hint="New token i stands in slot position + i.",
    )
    expect(
        not bool((mask & ~right).any()),
        "no new token sees a later one",
        fed=fed,
        expected=str(right.int().tolist()),
        got=str(mask.int().tolist()),
        hint="Three tokens read at once: causality holds among them too.",
    )
    expect_close(
        "each new token sees all that came before",
        mask,
        right,
        fed=fed,
        hint="A column is visible to row i if it is at most position + i.",
    )


@exercise("kv_cache.beams", minutes=15, level="medium")
def beams(learner: Any) -> None:
    """When beams change places, their keys and values go along."""
    layers = [(torch.randn(3, 2, 5, 7), torch.randn(3, 2, 5, 7)) for _ in range(2)]
    before = [(k.clone(), v.clone()) for k, v in layers]
    parents = torch.tensor([1, 0, 1])
    fed = "2 layers of 3 beams, parents [1, 0, 1]"
    moved = learner(layers, parents)
    for i, ((k, v), (old_k, old_v)) in enumerate(zip(moved, before, strict=True)):
        for name, got, old in (("keys", k, old_k), ("values", v, old_v)):
            expect_close(
                f"beam i gets the {name} that beam parents[i] had before anybody moved"
                if i == 0
                else f"the {name} of every layer move",
                got,
                old[parents],
                fed=fed,
                hint="Beams 0 and 1 change places: whoever moves first must not overwrite what "
                "the other still needs. k[parents] makes a new tensor in one go, along the first "
                "axis.",
            )
    prompt = torch.randn(1, 2, 5, 7)
    begun = learner([(prompt, prompt.clone())], torch.tensor([0, 0, 0]))[0][0]
    fed = "one prompt, parents [0, 0, 0]; then beam 0 of the result is overwritten with zeros"
    expect_close(
        "three beams can begin from one prompt",
        begun,
        prompt.repeat(3, 1, 1, 1),
        fed=fed,
        hint="parents is as long as the new cache; the old one may have fewer rows, or more.",
    )
    want = prompt.clone()
    begun[0] = 0.0
    expect_close(
        "beams with one parent do not share memory",
        begun[2],
        want[0],
        fed=f"{fed}, and beam 2 is looked at",
        hint="expand() makes one row look like three; indexing with a tensor copies.",
    )


_TEXT = "Schön, 日本 🙂!"


@exercise("kv_cache.pieces", minutes=15, level="medium")
def pieces(learner: Any) -> None:
    """Text as it arrives, and never half a character."""
    whole = _TEXT.encode()
    chunks = [whole[i : i + 2] for i in range(0, len(whole), 2)]
    got = learner(list(chunks))
    got = list(got) if isinstance(got, Iterator) else got
    fed = f"the bytes of {_TEXT!r}, two at a time"
    if not isinstance(got, Sequence) or not all(isinstance(piece, str) for piece in got):
        raise Failed(
            "the pieces are a list of strings",
            fed=fed,
            expected="a list of str",
            got=type(got).__name__,
            hint="Return a list with one string for each piece of bytes.",
        )
    expect(
        not any("\N{REPLACEMENT CHARACTER}" in piece for piece in got),
        "no piece shows a broken character",
        fed=fed,
        expected="no replacement character",
        got=repr(list(got)),
        hint="Keep bytes back until the character that they begin is complete.",
    )
    expect(
        "".join(got) == _TEXT,
        "the pieces together are the text",
        fed=fed,
        expected=repr(_TEXT),
        got=repr("".join(got)),
        hint="Bytes that cannot be shown yet must not be thrown away.",
    )
    lengths = [len(whole[: 2 * i + 2].decode(errors="ignore")) for i in range(len(chunks))]
    shown = [len("".join(got[: i + 1])) for i in range(len(got))]
    expect(
        shown == lengths,
        "each character appears as soon as its last byte is there",
        fed=fed,
        expected=f"characters shown after each piece: {lengths}",
        got=str(shown),
        hint="Give one string for each piece of bytes, empty where nothing is complete, and do "
        "not wait longer than you must.",
    )


@exercise("kv_cache.nucleus", minutes=15, level="medium")
def nucleus(learner: Any) -> None:
    """The fewest tokens that hold the share p, and what is left of the probabilities."""
    probs = torch.tensor([0.05, 0.5, 0.1, 0.3, 0.05])
    fed = f"probabilities {[round(x, 2) for x in probs.tolist()]}"
    got = learner(probs.clone(), 0.7)
    expect_close(
        "the shares that are left sum to one",
        torch.as_tensor(got).sum(),
        torch.tensor(1.0),
        fed=f"{fed}, p = 0.7",
        hint="Divide by what is left.",
    )
    right = torch.tensor([0.0, 0.625, 0.0, 0.375, 0.0])
    expect(
        bool(torch.as_tensor(got)[[0, 2, 4]].sum() < 1e-6),
        "no token stays that is not needed to reach p, and each keeps its place",
        fed=f"{fed}, p = 0.7",
        expected=str([round(x, 3) for x in right.tolist()]),
        got=str([round(float(x), 3) for x in got]),
        hint="Largest first, until the sum reaches p; then put them back where they stood.",
    )
    expect_close(
        "the token that carries the sum past p stays",
        got,
        right,
        fed=f"{fed}, p = 0.7: 0.5 is not enough, 0.5 + 0.3 is",
        hint="A token goes only if p was reached before it: compare the sum without itself.",
    )
    expect_close(
        "the most likely token always stays",
        learner(probs.clone(), 0.2),
        torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]),
        fed=f"{fed}, p = 0.2",
        hint="0.5 is more than 0.2, and something must be left to draw from.",
    )
    expect_close(
        "p = 1 changes nothing",
        learner(probs.clone(), 1.0),
        probs,
        fed=f"{fed}, p = 1",
        hint="With p = 1 every token is needed.",
    )
