"""Right answers pass; typical wrong ones are told which property they lack."""

import pytest
import torch
from glassformer import exercises


def table_gradient(ids, grad, rows):
    return torch.zeros(rows, grad.shape[-1]).index_add(0, ids.flatten(), grad.flatten(0, -2))


def written(ids, grad, rows, *, add=False):
    table = torch.zeros(rows, grad.shape[-1])
    if add:
        table[ids] += grad
    else:
        table[ids] = grad
    return table


def word_pieces(word, vocabulary, *, mark="##", shortest=False, give_up=True):
    pieces, start = [], 0
    while start < len(word):
        ends = range(start + 1, len(word) + 1)
        for end in ends if shortest else reversed(ends):
            piece = (mark if start else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            if give_up:
                return ["[UNK]"]
            return [*pieces, "[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def skipping(word, vocabulary):
    while word and word_pieces(word[0], vocabulary) == ["[UNK]"]:
        whole = word_pieces(word, vocabulary)
        if whole != ["[UNK]"]:
            return whole
        word = word[1:]
    return word_pieces(word, vocabulary)


def unmarked_inside(word, vocabulary):
    return word_pieces(word, vocabulary | {"##" + piece for piece in vocabulary})


def marked_at_the_start(word, vocabulary):
    return word_pieces(word, vocabulary | {piece.removeprefix("##") for piece in vocabulary})


def going_back(word, vocabulary, start=0):
    if start == len(word):
        return []
    for end in range(len(word), start, -1):
        piece = ("##" if start else "") + word[start:end]
        rest = going_back(word, vocabulary, end) if piece in vocabulary else ["[UNK]"]
        if rest != ["[UNK]"]:
            return [piece, *rest]
    return ["[UNK]"]


def sinusoids(positions, width, *, power=1.0, dtype=torch.float32, interleave=True, base=1e4):
    pairs = torch.arange(0, width, 2) * power
    angles = (positions[:, None].to(dtype) * (base ** (-pairs / width)).to(dtype)).float()
    if interleave:
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def cosine_first(positions, width):
    return sinusoids(positions, width).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def rotary_neighbours(x, positions, *, sign=1, base=1e4):
    width = x.shape[-1]
    angles = positions[:, None] * base ** (-torch.arange(0, width, 2) / width)
    cos, sin = angles.cos(), sign * angles.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def rotary_halves(x, positions):
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    turned = torch.empty_like(x)
    turned[..., order] = rotary_neighbours(x[..., order], positions)
    return turned


def rotary_left_apart(x, positions):
    return rotary_neighbours(x, positions).unflatten(-1, (-1, 2)).mT.flatten(-2)


def rotary_scaled(x, positions):
    return rotary_neighbours(x, positions) * (1 + positions[:, None])


def padded_positions(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


def arange(mask):
    return torch.arange(mask.shape[1]).expand(mask.shape)


def minus_left_padding(mask):
    return (arange(mask) - mask.int().argmax(-1, keepdim=True)).clamp(min=0)


RIGHT = {
    "table_gradient": table_gradient,
    "word_pieces": word_pieces,
    "sinusoids": sinusoids,
    "rotary_neighbours": rotary_neighbours,
    "padded_positions": padded_positions,
}

WRONG = [
    ("table_gradient", written, "three times"),
    ("table_gradient", lambda *a: written(*a, add=True), "three times"),
    ("table_gradient", lambda i, g, n: g.mean(0).expand(n, -1), "not looked up"),
    ("table_gradient", lambda i, g, n: -table_gradient(i, g, n), "looked up once"),
    (
        "table_gradient",
        lambda i, g, n: table_gradient(i[0], g[0], n) if i.ndim > 1 else table_gradient(i, g, n),
        "a batch of sentences",
    ),
    ("word_pieces", lambda w, v: word_pieces(w, v, mark=""), "carry ##"),
    ("word_pieces", lambda w, v: word_pieces(w, v, shortest=True), "longest piece"),
    ("word_pieces", lambda w, v: word_pieces(w, v)[:2], "to the end of the word"),
    ("word_pieces", lambda w, v: word_pieces(w, v, give_up=False), "cut to its end"),
    ("word_pieces", skipping, "from its start"),
    ("word_pieces", unmarked_inside, "only begins a word"),
    ("word_pieces", marked_at_the_start, "never begins a word"),
    ("word_pieces", going_back, "never goes back"),
    ("sinusoids", lambda p, d: sinusoids(p, d, interleave=False), "in turn"),
    ("sinusoids", cosine_first, "in turn"),
    ("sinusoids", lambda p, d: sinusoids(p * 2, d), "fastest hand"),
    ("sinusoids", lambda p, d: sinusoids(p, d, power=2), "pair i turns"),
    ("sinusoids", lambda p, d: sinusoids(p, d, power=0.5), "pair i turns"),
    ("sinusoids", lambda p, d: sinusoids(p, d, base=1e3), "pair i turns"),
    ("sinusoids", lambda p, d: sinusoids(p.half(), d), "in float32"),
    ("rotary_neighbours", rotary_halves, "each pair of neighbours"),
    ("rotary_neighbours", rotary_left_apart, "position 0"),
    ("rotary_neighbours", rotary_scaled, "keeps the length"),
    ("rotary_neighbours", lambda x, p: rotary_neighbours(x, p + 1), "position 0"),
    ("rotary_neighbours", lambda x, p: rotary_neighbours(x, p, sign=-1), "towards the second"),
    ("rotary_neighbours", lambda x, p: rotary_neighbours(x, p, base=100), "its frequency"),
    (
        "rotary_neighbours",
        lambda x, p: rotary_neighbours(x, p if len(p) > 1 else p**2),
        "distance alone",
    ),
    ("padded_positions", lambda m: m.cumsum(-1), "count 0, 1, 2"),
    ("padded_positions", arange, "moves no token"),
    ("padded_positions", lambda m: m.cumsum(-1) - 1, "a table has"),
    ("padded_positions", lambda m: padded_positions(m) + 9 * ~m, "a table has"),
    ("padded_positions", minus_left_padding, "gap in the middle"),
    ("padded_positions", lambda m: padded_positions(m)[0], "the shape"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    report = exercises.check(f"embeddings.{name}", RIGHT[name])
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, said):
    report = exercises.check(f"embeddings.{name}", answer)
    assert not report.passed
    assert any(part in report.property for part in said.split("|")), report
    assert report.fed
    assert report.hint or "shape" in report.property or "tensor" in report.property


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("embeddings"):
        assert sum(f"embeddings.{wrong[0]}" == name for wrong in WRONG) >= 3


def scattered(ids, grad, rows):
    table = torch.zeros(rows, grad.shape[-1])
    return table.index_put((ids,), grad, accumulate=True)


def one_hot_gradient(ids, grad, rows):
    one_hot = torch.nn.functional.one_hot(ids.flatten(), rows).float()
    return one_hot.T @ grad.flatten(0, -2)


def by_complex_numbers(x, positions):
    width = x.shape[-1]
    angles = positions[:, None] * 1e4 ** (-torch.arange(0, width, 2) / width)
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("table_gradient", scattered),
        ("table_gradient", one_hot_gradient),
        ("rotary_neighbours", by_complex_numbers),
    ],
)
def test_a_correct_answer_in_another_form_passes(name, answer):
    report = exercises.check(f"embeddings.{name}", answer)
    assert report.passed, report
