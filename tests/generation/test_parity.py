"""Parity with the generation of Hugging Face, where the rules coincide: texts without a stop.

(Theirs goes on with a full beam when a text has finished; ours lets it keep its place.)
"""

import pytest
import torch
from glassformer.data import pad_batch
from glassformer.generation import beam_search, generate, sampler
from parity.families import TRANSLATORS, pair, transformers

PROMPTS = [[5, 7, 11], [13, 17, 19, 23, 2]]
NAMES = pytest.mark.parametrize("name", ["gpt2", "llama", "phi3", "marian", "t5"])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    built = {}

    def get(name):
        if name not in built:
            # their cache wants as many decoder layers as encoder layers
            changes = {"num_decoder_layers": 2} if name == "t5" else {}
            built[name] = pair(name, tmp_path_factory.mktemp(name), **changes)
        return built[name]

    return get


def theirs_with(name, model, **options):
    """Seven tokens for each prompt by their ``generate``."""
    tokens, mask = pad_batch(PROMPTS, 0, left=name not in TRANSLATORS)
    config = transformers.GenerationConfig(
        max_new_tokens=7,
        do_sample=False,
        pad_token_id=0,
        decoder_start_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    return model.generate(input_ids=tokens, attention_mask=mask.long(), generation_config=config)


def bos_of(name):
    return 0 if name in TRANSLATORS else None


@NAMES
@pytest.mark.parametrize(("n_beams", "alpha"), [(4, 1.0), (3, 0.0), (2, 2.0)])
def test_beam_search(pairs, name, n_beams, alpha):
    ours, theirs = pairs(name)
    want = theirs_with(
        name, theirs, num_beams=n_beams, num_return_sequences=n_beams, length_penalty=alpha
    )
    found = beam_search(
        ours,
        PROMPTS,
        n_beams=n_beams,
        n_best=n_beams,
        max_new_tokens=7,
        length_penalty=alpha,
        bos_id=bos_of(name),
    )
    found = [text for texts in found for text in texts]
    assert [text.tokens for text in found] == want.sequences[:, -7:].tolist()
    scores = torch.tensor([text.score for text in found])
    torch.testing.assert_close(scores, want.sequences_scores, rtol=0, atol=1e-4)


@NAMES
@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_greedy_with_a_repetition_penalty(pairs, name, penalty):
    ours, theirs = pairs(name)
    want = theirs_with(name, theirs, repetition_penalty=penalty)
    choose = sampler(temperature=0.0, repetition_penalty=penalty)
    got = generate(ours, PROMPTS, max_new_tokens=7, choose=choose, bos_id=bos_of(name))
    if name in TRANSLATORS or penalty == 1.0:
        assert got.tokens.tolist() == want.sequences[:, -7:].tolist()
    else:  # theirs also penalises the padding of the shorter prompt, so only the longer compares
        assert got.tokens[1].tolist() == want.sequences[1, -7:].tolist()
