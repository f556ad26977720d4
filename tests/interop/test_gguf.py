"""GGUF files, written small by the format's own writer."""

import sys

import numpy as np
import pytest
import torch
from glassformer import DecoderConfig, build_model
from glassformer.errors import CheckpointError, ConfigError, TokenizerError
from glassformer.interop import load_gguf
from glassformer.interop._tables import half_split, to_theirs
from glassformer.interop.gguf import gguf_table
from support.core import ids, scramble
from torch.testing import assert_close

gguf = pytest.importorskip("gguf")

TOKENS = ["<|end|>", "<tool>", "h", "e", "l", "o", "Ġ", "1", "2", "he", "ll", "hell", "Ġhe"]
MERGES = ["h e", "l l", "he ll", "Ġ he"]
CONFIG = DecoderConfig(
    vocab_size=len(TOKENS),
    max_len=23,
    d_model=32,
    n_heads=4,
    n_kv_heads=2,
    head_size=8,
    n_layers=2,
    d_ff=64,
    activation="swiglu",
    norm="rms",
    norm_eps=1e-5,
    rope_base=5e4,
    bias=False,
    tie_embeddings=False,
)


def model():
    return scramble(build_model(CONFIG), by=0.1).eval()


def write(path, ours, *, architecture="llama", drop=(), quantised=False, **changes):
    """A file as llama.cpp has it; ``changes`` are keys of the tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {
        "add_vocab_size": CONFIG.vocab_size,
        "add_context_length": CONFIG.max_len,
        "add_embedding_length": CONFIG.d_model,
        "add_feed_forward_length": CONFIG.ff_size,
        "add_block_count": CONFIG.n_layers,
        "add_head_count": CONFIG.n_heads,
        "add_head_count_kv": CONFIG.kv_heads,
        "add_layer_norm_rms_eps": CONFIG.norm_eps,
        "add_rope_freq_base": CONFIG.rope_base,
        "add_rope_dimension_count": CONFIG.d_head,
    }
    for method, value in sizes.items():
        if method != changes.get("without"):
            getattr(writer, method)(value)
    tokenizer = {"model": "gpt2", "pre": "smollm", "types": [3, 4] + [1] * 11, **changes}
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_token_list(TOKENS)
    writer.add_token_types(tokenizer["types"])
    writer.add_token_merges(MERGES)
    if "scaling" in changes:
        writer.add_rope_scaling_factor(changes["scaling"])
    for name, tensor in to_theirs(ours.state_dict(), gguf_table(CONFIG)).items():
        if name in drop:
            continue
        data = tensor.detach().numpy()
        if quantised and data.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@torch.no_grad()
def test_a_model_comes_back(tmp_path):
    ours = model()
    loaded, _ = load_gguf(write(tmp_path / "m.gguf", ours))
    assert not loaded.training
    tokens = ids(2, 7, vocab_size=CONFIG.vocab_size)
    # sizes go through float32 over there
    assert_close(loaded(tokens), ours(tokens), atol=1e-6, rtol=0)
    assert loaded.config.norm_eps == pytest.approx(1e-5)
    assert loaded.config.rope_base == 5e4


@torch.no_grad()
def test_E11_the_file_has_neighbouring_pairs_and_the_model_halves(tmp_path):
    """A file whose queries and keys stand as ours do gives another model."""
    ours = model()
    path = write(tmp_path / "m.gguf", ours)
    raw = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.attn_k.weight")
    kept = ours.decoder.blocks[1].self_attn.k_proj.weight
    assert torch.equal(half_split(2).to_ours(torch.tensor(np.array(raw.data))), kept)
    assert not torch.equal(torch.tensor(np.array(raw.data)), kept)
    loaded, _ = load_gguf(path)
    assert torch.equal(loaded.decoder.blocks[1].self_attn.k_proj.weight, kept)


def test_quantised_weights_are_what_the_format_says(tmp_path):
    """Q8_0: blocks of 32 numbers share a scale in float16, so each is off by half a step or so."""
    ours = model()
    loaded, _ = load_gguf(write(tmp_path / "m.gguf", ours, quantised=True))
    want = ours.decoder.blocks[0].feed_forward.up_proj.weight
    got = loaded.decoder.blocks[0].feed_forward.up_proj.weight
    step = want.detach().unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) / 127
    error = (got - want).unflatten(-1, (-1, 32)).abs()
    assert (error <= 0.54 * step).all()
    assert error.max() > 0


def test_without_a_head_the_embedding_is_the_head(tmp_path):
    loaded, _ = load_gguf(write(tmp_path / "m.gguf", model(), drop=["output.weight"]))
    assert loaded.config.tie_embeddings
    assert loaded.lm_head is None


def test_a_missing_tensor_is_named(tmp_path):
    path = write(tmp_path / "m.gguf", model(), drop=["blk.1.ffn_up.weight"])
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight is missing"):
        load_gguf(path)


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"no such thing" * 9])
def test_no_gguf_file(tmp_path, content):
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"m\.gguf: no readable GGUF"):
        load_gguf(path)


def test_a_cut_file(tmp_path):
    path = write(tmp_path / "m.gguf", model())
    path.write_bytes(path.read_bytes()[:-999])
    with pytest.raises(CheckpointError, match="no readable GGUF"):
        load_gguf(path)


def test_a_size_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match="does not say n_heads"):
        load_gguf(write(tmp_path / "m.gguf", model(), without="add_head_count"))


@pytest.mark.parametrize("without", ["add_vocab_size", "add_rope_dimension_count"])
def test_some_sizes_are_known_from_others(tmp_path, without):
    loaded, _ = load_gguf(write(tmp_path / "m.gguf", model(), without=without))
    assert (loaded.config.vocab_size, loaded.config.d_head) == (len(TOKENS), 8)


@pytest.mark.parametrize(
    ("library", "error"), [("gguf", CheckpointError), ("tokenizers", TokenizerError)]
)
def test_without_the_library_its_name_is_given(tmp_path, monkeypatch, library, error):
    path = write(tmp_path / "m.gguf", model())
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(error, match=rf"need[s]? {library}"):
        load_gguf(path)


def test_another_architecture_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"general\.architecture='gemma'"):
        load_gguf(write(tmp_path / "m.gguf", model(), architecture="gemma"))


def test_a_setting_we_lack_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"llama\.rope\.scaling\.factor"):
        load_gguf(write(tmp_path / "m.gguf", model(), scaling=2.0))


class TestTokenizer:
    @pytest.fixture
    def tokenizer(self, tmp_path):
        return load_gguf(write(tmp_path / "m.gguf", model()))[1]

    def test_pieces_merge_in_the_order_of_the_file(self, tokenizer):
        assert tokenizer.encode("hello he").tokens == ["hell", "o", "Ġhe"]

    def test_every_digit_stands_alone(self, tokenizer):
        assert tokenizer.encode("12").tokens == ["1", "2"]

    def test_control_tokens_are_read_whole_and_left_out_of_text(self, tokenizer):
        ids = tokenizer.encode("he<|end|><tool>").ids
        assert ids == [9, 0, 1]
        assert tokenizer.decode(ids) == "he<tool>"

    @pytest.mark.parametrize(
        "changes", [{"model": "llama"}, {"pre": "qwen2"}, {"types": [3, 4, 6] + [1] * 10}]
    )
    def test_another_kind_is_refused(self, tmp_path, changes):
        with pytest.raises(TokenizerError, match="not supported"):
            load_gguf(write(tmp_path / "m.gguf", model(), **changes))
