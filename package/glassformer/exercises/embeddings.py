"""Checks for the exercises of the chapter ``embeddings``."""

from typing import Any

import torch
from torch import Tensor

from glassformer.exercises import exercise, expect, expect_close
from glassformer.functional import apply_rotary, rotary_angles, sinusoidal_positions

__all__: list[str] = []

_PIECES = (
    "[UNK] em bed ##bed ##ding ##d ##ing ##s ##er un ##able play ##play ##ing ##ed playing a ##a b"
)


@exercise("embeddings.table_gradient", minutes=10, level="easy")
def table_gradient(learner: Any) -> None:
    """The backward pass of a look-up: each position pays into the row it came from."""
    ids, grad = torch.tensor([3, 1, 5]), torch.randn(3, 2)
    want = torch.zeros(7, 2).index_add(0, ids, grad)
    fed = "ids [3, 1, 5], their gradients of shape (3, 2), a table of 7 rows"
    got = learner(ids.clone(), grad.clone(), 7)
    rows = got[[0, 2, 4, 6]] if isinstance(got, Tensor) and got.shape == (7, 2) else None
    if rows is not None:
        expect_close(
            "rows that were not looked up get no gradient",
            rows,
            torch.zeros(4, 2),
            fed=fed,
            hint="Start from zeros of shape (rows, width).",
        )
    expect_close(
        "a row that was looked up once gets the gradient of its place",
        got,
        want,
        fed=fed,
        hint="The gradient of place t goes to row ids[t], unchanged.",
    )
    ids, grad = torch.tensor([2, 4, 2, 2]), torch.randn(4, 3)
    expect_close(
        "a token that stands there three times gets the sum of three gradients",
        learner(ids.clone(), grad.clone(), 5),
        torch.zeros(5, 3).index_add(0, ids, grad),
        fed="ids [2, 4, 2, 2] in a table of 5 rows",
        hint="table[ids] = grad keeps the last of several, and table[ids] += grad reads before it "
        "writes, so it keeps one too. index_add and index_put(accumulate=True) add up.",
    )
    ids, grad = torch.tensor([[2, 0, 1], [1, 1, 2]]), torch.randn(2, 3, 5)
    expect_close(
        "a batch of sentences pays into one table",
        learner(ids.clone(), grad.clone(), 4),
        torch.zeros(4, 5).index_add(0, ids.flatten(), grad.flatten(0, 1)),
        fed="two sentences of three ids, gradients of shape (2, 3, 5), a table of 4 rows",
        hint="For the table a batch is one long row of tokens: flatten both first.",
    )


@exercise("embeddings.word_pieces", minutes=20, level="medium")
def word_pieces(learner: Any) -> None:
    """WordPiece cuts a word from the left, taking the longest piece that is in the vocabulary."""
    vocabulary = set(_PIECES.split())

    def cut(word: str) -> Any:
        return learner(word, set(vocabulary))

    _expect_pieces(
        cut("embed"),
        "em ##bed",
        "embed",
        "pieces inside a word carry ##",
        "bed is a piece that begins a word, ##bed one that goes on. After the first piece, look up "
        "'##' + the letters.",
    )
    _expect_pieces(
        cut("playing"),
        "playing",
        "playing",
        "the longest piece is taken",
        "playing is in the vocabulary, and so are play and ##ing. Begin with all letters and make "
        "the piece shorter from the right until the vocabulary has it.",
    )
    _expect_pieces(
        cut("embeddings"),
        "em ##bed ##ding ##s",
        "embeddings",
        "the cut goes on to the end of the word",
        "After each piece start again where it ended, until no letter is left.",
    )
    _expect_pieces(
        cut("playx"),
        "[UNK]",
        "playx, where nothing fits the x",
        "a word that cannot be cut to its end is one [UNK] as a whole",
        "BERT gives up the whole word: not play and then [UNK].",
    )
    _expect_pieces(
        cut("xplay"),
        "[UNK]",
        "xplay, where nothing fits the x",
        "a word that cannot be cut from its start is one [UNK] as a whole",
        "If even one letter is no piece, return ['[UNK]'] at once, and do not skip it.",
    )
    _expect_pieces(
        cut("playb"),
        "[UNK]",
        "playb, where b begins words and ##b is missing",
        "a piece without ## only begins a word",
        "Inside a word look up '##' + the letters and nothing else.",
    )
    _expect_pieces(
        cut("ding"),
        "[UNK]",
        "ding, where ##ding goes on and ding is missing",
        "a piece with ## never begins a word",
        "At the start of a word look up the letters without '##', and nothing else.",
    )
    few = "a ##b ##bc ##cd"
    _expect_pieces(
        learner("abcd", set(few.split())),
        "[UNK]",
        "abcd",
        "the rule never goes back to try a shorter piece",
        "After a and ##bc nothing fits the d. That a ##b ##cd would have fitted is not looked at.",
        few,
    )


def _expect_pieces(
    got: Any, wanted: str, fed: str, prop: str, hint: str, vocabulary: str = _PIECES
) -> None:
    pieces = wanted.split()
    shown = list(got) if isinstance(got, list | tuple) else got
    expect(
        shown == pieces,
        prop,
        fed=f"the word {fed}; the vocabulary {vocabulary.replace('[UNK] ', '')}",
        expected=pieces,
        got=shown,
        hint=hint,
    )


@exercise("embeddings.sinusoids", minutes=15, level="medium")
def sinusoids(learner: Any) -> None:
    """Three bugs in a table of sinusoids that a test of shapes does not see."""
    fed = "positions 0 to 4, width 6"
    got = learner(torch.arange(5), 6)
    want = sinusoidal_positions(torch.arange(5), 6)
    zero = got[0] if isinstance(got, Tensor) and got.shape == want.shape else got
    expect_close(
        "at position 0 every sine is 0 and every cosine 1, in turn",
        zero,
        torch.tensor([0.0, 1.0] * 3),
        fed="position 0, width 6",
        hint="Sine and cosine of a pair are neighbours: dimensions 0 and 1. torch.cat puts "
        "all sines first; torch.stack(..., dim=-1).flatten(-2) does not.",
    )
    expect_close(
        "the fastest hand moves one radian a step",
        got[:, :2],
        want[:, :2],
        fed=fed,
        hint="Pair 0 has frequency 1, whatever the width: 10000 to the power of 0.",
    )
    expect_close(
        "pair i turns at 10000 to the power of -2i/width",
        got,
        want,
        fed=fed,
        hint="Is your exponent 2i/width, with i counting pairs? A range from 0 to width in steps "
        "of 2 has the 2 in it already.",
    )
    positions = torch.tensor([2048, 2049, 4095])
    expect_close(
        "positions are multiplied in float32",
        learner(positions, 8),
        sinusoidal_positions(positions, 8),
        fed="positions 2048, 2049, 4095, width 8",
        hint="float16 counts 2048, 2050, ...: it has no 2049. Compute in float32 and cast last.",
        atol=1e-3,
    )


@exercise("embeddings.rotary_neighbours", minutes=20, level="medium")
def rotary_neighbours(learner: Any) -> None:
    """Rotary positions in the layout of the paper, whose pairs are neighbours."""
    x, width = torch.randn(2, 3, 5, 8), 8
    positions = torch.tensor([0, 1, 2, 7, 40])
    fed = "x of shape (2, 3, 5, 8) at positions 0, 1, 2, 7, 40"
    got = learner(x.clone(), positions)
    still = got[:, :, 0] if isinstance(got, Tensor) and got.shape == x.shape else got
    expect_close(
        "position 0 turns nothing",
        still,
        x[:, :, 0],
        fed=fed,
        hint="cos 0 = 1 and sin 0 = 0. The result has the shape and the order of x.",
    )
    expect_close(
        "turning keeps the length of each pair of neighbours",
        got.unflatten(-1, (4, 2)).norm(dim=-1),
        x.unflatten(-1, (4, 2)).norm(dim=-1),
        fed=fed,
        hint="Pairs are (x[0], x[1]), (x[2], x[3]): x[..., 0::2] and x[..., 1::2]. Did you put the "
        "results back where they came from?",
    )
    order = torch.arange(width).unflatten(0, (4, 2)).T.flatten()  # 0 2 4 6 1 3 5 7
    halves = apply_rotary(x[..., order], *rotary_angles(positions, width))
    want = torch.empty_like(x)
    want[..., order] = halves
    expect_close(
        "each pair turns by position times its frequency, from the first towards the second",
        got,
        want,
        fed=fed,
        hint="(a, b) becomes (a cos - b sin, b cos + a sin), with the angle position / "
        "10000^(2i/width) for pair i.",
    )
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    near, far = (
        (learner(q, torch.tensor([m])) * learner(k, torch.tensor([n]))).sum()
        for m, n in ((9, 4), (305, 300))
    )
    expect_close(
        "a score depends on the distance alone",
        far,
        near,
        fed="one query and one key, at positions 9 and 4 and at 305 and 300",
        hint="Query and key are turned by the same rule, each by its own position.",
        atol=1e-3,
    )


@exercise("embeddings.padded_positions", minutes=15, level="medium")
def padded_positions(learner: Any) -> None:
    """Positions count real tokens, wherever the padding stands."""
    right = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    fed = "a token mask with padding on the right"
    got = learner(right.clone())
    expect_close(
        "without padding before them, tokens count 0, 1, 2",
        got[right] if isinstance(got, Tensor) and got.shape == right.shape else got,
        torch.tensor([0, 1, 2, 0, 1, 2, 3, 4]),
        fed=fed,
        hint="The first token has position 0: cumsum counts itself, so take 1 off. Return int64 of "
        "the mask's shape.",
    )
    left = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    got = learner(left.clone())
    expect_close(
        "padding on the left moves no token",
        got[left],
        torch.tensor([0, 1, 2, 0, 1, 2, 3, 4]),
        fed="a token mask with two paddings on the left",
        hint="arange counts the padding too. Count the real tokens up to each place.",
    )
    expect(
        int(got.min()) >= 0 and int(got.max()) < 5,
        "the padding has a position that a table has",
        fed="the same mask of 5 places; a learned table is read at padded ones too",
        expected="positions from 0 to 4",
        got=got,
        hint="cumsum - 1 is -1 on the left padding. -1 is the last row in plain indexing and an "
        "error in nn.Embedding: clamp at 0. So is a position past the last row.",
    )
    packed = torch.tensor([[0, 1, 1, 0, 1, 1]]).bool()
    expect_close(
        "a gap in the middle is not counted either",
        learner(packed.clone())[packed],
        torch.tensor([0, 1, 2, 3]),
        fed="a token mask with padding on the left and in the middle",
        hint="Subtracting the number of paddings on the left is not enough.",
    )
