"""Right answers pass; typical wrong ones are told which property they lack."""

import codecs

import pytest
import torch
from glassformer import exercises


def bound(bandwidth, weight_bytes, token_bytes, rows, length):
    return rows * bandwidth / (weight_bytes + rows * length * token_bytes)


def one_row(bandwidth, weight_bytes, token_bytes, rows, length):
    return bandwidth / (weight_bytes + rows * length * token_bytes)


def one_cache(bandwidth, weight_bytes, token_bytes, rows, length):
    return rows * bandwidth / (weight_bytes + length * token_bytes)


def weights_only(bandwidth, weight_bytes, token_bytes, rows, length):
    return rows * bandwidth / weight_bytes


def weights_for_each(bandwidth, weight_bytes, token_bytes, rows, length):
    return bandwidth / (weight_bytes + length * token_bytes)


def seconds(bandwidth, weight_bytes, token_bytes, rows, length):
    return (weight_bytes + rows * length * token_bytes) / bandwidth


def loop(model, prompt, n_new, *, past_on=True, choose=None, extra=False, whole=False):
    choose = choose or (lambda logits: logits[:, -1].argmax(dim=-1))
    tokens, past, chosen = prompt, None, []
    for i in range(n_new):
        logits, new_past = model(tokens, past)
        past = new_past if past_on else None
        chosen.append(choose(logits))
        tokens = chosen[-1][:, None]
        if whole:
            tokens = torch.cat((prompt, torch.stack(chosen, dim=1)), dim=1)
        if extra and i == n_new - 1:
            model(tokens, past)
    return torch.stack(chosen, dim=1)


def walks_over_the_prompt(model, prompt, n_new):
    past = None
    for token in prompt.T:
        logits, past = model(token[:, None], past)
    return logits[:, -1].argmax(dim=-1)[:, None]


def reads_the_last_of_the_prompt(model, prompt, n_new):
    logits, past = model(prompt, None)
    out = []
    for _ in range(n_new):
        out.append(logits[:, -1].argmax(dim=-1))
        logits, past = model(prompt[:, -1:], past)
    return torch.stack(out, dim=1)


def with_prompt(model, prompt, n_new):
    return torch.cat((prompt, loop(model, prompt, n_new)), dim=1)


def static(buffer, position, new, *, shift=0, flat=False, causal=True):
    n_new, slots = new.shape[2], torch.arange(buffer.shape[2])
    buffer[:, :, position : position + n_new] = new
    if flat:
        return slots < position + n_new
    last = position + torch.arange(n_new)[:, None] if causal else position + n_new - 1
    return (slots <= last + shift).expand(n_new, -1)


def out_of_place(buffer, position, new):
    buffer = torch.cat((buffer[:, :, :position], new), dim=2)
    return torch.ones(new.shape[2], buffer.shape[2], dtype=torch.bool)


def at_the_front(buffer, position, new):
    buffer[:, :, :position] = 0
    return static(buffer, position, new)


def only_new(buffer, position, new):
    mask = static(buffer, position, new)
    mask = mask.clone()
    mask[:, : position - 1] = False
    return mask


def beams(layers, parents):
    return [(k[parents], v[parents]) for k, v in layers]


def one_by_one(layers, parents):
    for k, v in layers:
        for i, parent in enumerate(parents.tolist()):
            k[i], v[i] = k[parent], v[parent]
    return layers


def keys_only(layers, parents):
    return [(k[parents], v) for k, v in layers]


def first_layer(layers, parents):
    return [beams(layers[:1], parents)[0], *layers[1:]]


def shared(layers, parents):
    if len(layers[0][0]) == 1:
        return [(k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1)) for k, v in layers]
    return beams(layers, parents)


def pieces(chunks):
    decoder = codecs.getincrementaldecoder("utf-8")()
    return [decoder.decode(chunk) for chunk in chunks]


def late(chunks):
    done = pieces(chunks)
    return ["", *done[:-2], "".join(done[-2:])]


def nucleus(probs, p, *, keep_crossing=True, back=True, ascending=False, normalise=True):
    ordered, order = probs.sort(descending=not ascending)
    sums = ordered.cumsum(0)
    keep = (sums - ordered < p - 1e-6) if keep_crossing else sums <= p
    ordered = ordered * keep
    kept = torch.zeros_like(probs).scatter(0, order, ordered) if back else ordered
    return kept / kept.sum() if normalise else kept


RIGHT = {
    "bound": bound,
    "loop": loop,
    "static": static,
    "beams": beams,
    "pieces": pieces,
    "nucleus": nucleus,
}

WRONG = [
    ("bound", seconds, "all weights"),
    ("bound", weights_only, "the cache is fetched too"),
    ("bound", one_row, "share the weights"),
    ("bound", weights_for_each, "share the weights"),
    ("bound", one_cache, "brings its own cache"),
    ("loop", walks_over_the_prompt, "read in one call"),
    ("loop", lambda *fed: loop(*fed, past_on=False), "gets the past"),
    ("loop", lambda *fed: loop(*fed, whole=True), "one new token of each row"),
    ("loop", reads_the_last_of_the_prompt, "what was just chosen"),
    (
        "loop",
        lambda *fed: loop(*fed, choose=lambda logits: logits.argmax().expand(2) % 31),
        "what was just chosen",
    ),
    (
        "loop",
        lambda *fed: loop(*fed, choose=lambda logits: logits[:, 0].argmax(dim=-1)),
        "what was just chosen",
    ),
    ("loop", with_prompt, "without the prompt"),
    ("loop", lambda *fed: loop(*fed, extra=True), "the last token is not read"),
    ("static", out_of_place, "stand behind the old ones"),
    ("static", at_the_front, "all other slots"),
    ("static", lambda *fed: static(*fed, flat=True), "a row for each new token"),
    ("static", lambda *fed: torch.ones_like(static(*fed)), "nobody has written"),
    ("static", lambda *fed: static(*fed, shift=-1), "sees itself"),
    ("static", lambda *fed: static(*fed, causal=False), "no new token sees a later one"),
    ("static", only_new, "all that came before"),
    ("beams", one_by_one, "before anybody moved"),
    ("beams", lambda layers, parents: layers, "keys that beam parents"),
    ("beams", keys_only, "values that beam parents"),
    ("beams", first_layer, "of every layer move"),
    (
        "beams",
        lambda layers, parents: [(k[parents.argsort()], v[parents.argsort()]) for k, v in layers],
        "keys that beam parents",
    ),
    ("beams", shared, "do not share memory"),
    ("pieces", lambda chunks: [c.decode(errors="replace") for c in chunks], "broken character"),
    ("pieces", lambda chunks: [c.decode(errors="ignore") for c in chunks], "together are the text"),
    ("pieces", lambda chunks: [b"".join(chunks).decode()], "as soon as"),
    ("pieces", late, "as soon as"),
    ("pieces", lambda chunks: b"".join(chunks), "list of strings"),
    ("nucleus", lambda *fed: nucleus(*fed, normalise=False), "sum to one"),
    ("nucleus", lambda *fed: nucleus(*fed, back=False), "keeps its place"),
    ("nucleus", lambda *fed: nucleus(*fed, ascending=True), "not needed to reach p"),
    ("nucleus", lambda *fed: nucleus(*fed, keep_crossing=False), "past p stays"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_answer_passes(name: str) -> None:
    report = exercises.check(f"kv_cache.{name}", RIGHT[name])
    assert report.passed, repr(report)


def test_pieces_may_come_from_a_generator() -> None:
    assert exercises.check("kv_cache.pieces", lambda chunks: (x for x in pieces(chunks))).passed


@pytest.mark.parametrize(("name", "learner", "named"), WRONG)
def test_wrong_answer_is_told_why(name: str, learner, named: str) -> None:
    report = exercises.check(f"kv_cache.{name}", learner)
    assert not report.passed
    assert named in report.property, repr(report)
    assert report.hint


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("kv_cache"):
        assert sum(f"kv_cache.{wrong[0]}" == name for wrong in WRONG) >= 3
