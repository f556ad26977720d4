"""Files of other libraries: every tensor has its place, or the load is refused."""

import dataclasses
import json

import pytest
import safetensors.torch
import torch
from glassformer import build_model
from glassformer.errors import CheckpointError, ConfigError
from glassformer.interop import load_hugging_face, save_hugging_face, weight_table
from glassformer.interop._tables import to_theirs
from interop.configs import OURS
from support.core import scramble
from torch import nn

FAMILIES = list(OURS)


def made(family):
    return scramble(build_model(OURS[family])).eval()


def saved(folder, family):
    """A folder with a model of a family, and the model."""
    model = made(family)
    save_hugging_face(folder / family, model, family=family)
    return folder / family, model


def change(folder, edit):
    """Rewrite the weights of a folder after an edit of their dict."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    edit(tensors)
    safetensors.torch.save_file(tensors, path)


def same(model, other):
    one, two = model.state_dict(), other.state_dict()
    return one.keys() == two.keys() and all(
        torch.allclose(one[k], two[k], atol=0, rtol=2**-22) for k in one
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_loads_again(tmp_path, family):
    folder, model = saved(tmp_path, family)
    before = torch.get_rng_state()
    loaded = load_hugging_face(folder)
    assert same(loaded, model)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("family", ["phi3", "gpt2"])
def test_parts_of_one_tensor_share_no_memory(tmp_path, family):
    """A view of a fused tensor would keep all of it alive, and safetensors refuses to save it."""
    folder, _ = saved(tmp_path, family)
    places = [p.untyped_storage().data_ptr() for p in load_hugging_face(folder).parameters()]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_has_one_place_and_every_place_one_weight(family):
    """No two of ours read the same numbers, and none of ours is left out."""
    model = made(family)
    table = weight_table(model.config, family)
    assert sorted(link.ours for link in table) == sorted(model.state_dict())
    theirs = to_theirs(model.state_dict(), table)
    assert sum(t.numel() for t in theirs.values()) - _padding(family, model) == sum(
        p.numel() for p in model.parameters()
    )


def _padding(family, model):
    """RoBERTa's rows before its first position."""
    return (model.config.pad_id + 1) * model.config.d_model if family == "roberta" else 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_tensor_is_named(tmp_path, family):
    folder, _ = saved(tmp_path, family)
    names = list(safetensors.torch.load_file(folder / "model.safetensors"))
    name = next(name for name in names if "lm_head" not in name)
    change(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        load_hugging_face(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_tensor_is_named(tmp_path, family):
    folder, _ = saved(tmp_path, family)
    change(folder, lambda tensors: tensors.update({"classifier.weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"classifier\.weight is unknown"):
        load_hugging_face(folder)


def test_a_tensor_of_another_shape_is_named(tmp_path):
    """Fused projections that are too long would lose their end in silence."""
    folder, _ = saved(tmp_path, "phi3")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    change(folder, lambda tensors: tensors.update({name: torch.ones(97, 30)}))
    with pytest.raises(CheckpointError, match=r"qkv_proj.weight has shape \(97, 30\)"):
        load_hugging_face(folder)


def test_many_problems_are_counted_not_listed(tmp_path):
    folder, _ = saved(tmp_path, "gpt2")
    change(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[:11]])
    with pytest.raises(CheckpointError, match="and 3 more"):
        load_hugging_face(folder)


class TestNames:
    @pytest.mark.parametrize(
        ("family", "extra"),
        [
            ("bert", {"pooler.dense.weight", "embeddings.position_ids", "cls.predictions.bias"}),
            ("roberta", {"lm_head.dense.weight", "embeddings.position_ids"}),
            ("gpt2", {"transformer.h.0.attn.bias", "h.1.attn.masked_bias"}),
            ("llama", {"model.layers.0.self_attn.rotary_emb.inv_freq"}),
        ],
    )
    def test_buffers_and_heads_of_pretraining_are_passed_over(self, tmp_path, family, extra):
        folder, model = saved(tmp_path, family)
        change(folder, lambda tensors: tensors.update({name: torch.ones(1) for name in extra}))
        assert same(load_hugging_face(folder), model)

    @pytest.mark.parametrize(
        ("family", "prefix"),
        [("bert", "bert."), ("roberta", "roberta."), ("gpt2", "-transformer.")],
    )
    def test_models_with_and_without_a_head_have_other_prefixes(self, tmp_path, family, prefix):
        folder, model = saved(tmp_path, family)

        def rename(tensors):
            for name in list(tensors):
                new = name.removeprefix(prefix[1:]) if prefix[0] == "-" else prefix + name
                tensors[new] = tensors.pop(name)

        change(folder, rename)
        assert same(load_hugging_face(folder), model)

    def test_the_first_files_of_bert_call_weight_and_bias_gamma_and_beta(self, tmp_path):
        folder, model = saved(tmp_path, "bert")

        def rename(tensors):
            for name in [n for n in tensors if "LayerNorm" in n]:
                old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
                tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)

        change(folder, rename)
        assert same(load_hugging_face(folder), model)


class TestTies:
    def test_a_second_copy_of_a_tied_matrix_is_read_if_it_is_one(self, tmp_path):
        folder, model = saved(tmp_path, "gpt2")
        change(
            folder,
            lambda tensors: tensors.update(
                {"lm_head.weight": tensors["transformer.wte.weight"].clone()}
            ),
        )
        assert same(load_hugging_face(folder), model)

    def test_a_copy_that_differs_is_refused(self, tmp_path):
        """Silently dropped, it would leave another model than the one that was trained."""
        folder, _ = saved(tmp_path, "gpt2")
        change(folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(29, 30)}))
        with pytest.raises(CheckpointError, match="tie_word_embeddings"):
            load_hugging_face(folder)

    def test_the_copy_alone_will_do(self, tmp_path):
        folder, model = saved(tmp_path, "t5")
        change(
            folder,
            lambda tensors: tensors.update(
                {"encoder.embed_tokens.weight": tensors.pop("shared.weight")}
            ),
        )
        assert same(load_hugging_face(folder), model)

    def test_an_untied_t5_whose_file_has_one_matrix_uses_it_for_both(self, tmp_path):
        folder, _ = saved(tmp_path, "t5")
        change(folder, lambda tensors: tensors.pop("lm_head.weight"))
        loaded = load_hugging_face(folder)
        assert torch.equal(loaded.lm_head.weight, loaded.embedding.tokens.weight)
        assert loaded.lm_head.weight is not loaded.embedding.tokens.weight

    def test_sinusoids_in_a_file_must_be_those_that_are_computed(self, tmp_path):
        folder, model = saved(tmp_path, "marian")
        name = "model.encoder.embed_positions.weight"
        angles = torch.arange(23)[:, None] / 10_000 ** (torch.arange(15) / 15)
        table = torch.cat((angles.sin(), angles.cos()), dim=1)
        change(folder, lambda tensors: tensors.update({name: table}))
        assert same(load_hugging_face(folder), model)
        change(folder, lambda tensors: tensors.update({name: table.flip(0)}))
        with pytest.raises(CheckpointError, match="not what our models compute"):
            load_hugging_face(folder)


class TestFiles:
    def shard(self, folder):
        """The weights in two files and their index."""
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        places = {}
        for k in range(2):
            part = dict(list(tensors.items())[k::2])
            name = f"model-0000{k + 1}-of-00002.safetensors"
            safetensors.torch.save_file(part, folder / name)
            places |= dict.fromkeys(part, name)
        self.write_index(folder, places)
        return places

    def write_index(self, folder, places):
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps({"metadata": {}, "weight_map": places}))

    def test_shards(self, tmp_path):
        folder, model = saved(tmp_path, "qwen2")
        self.shard(folder)
        assert same(load_hugging_face(folder), model)

    def test_a_missing_shard_is_named(self, tmp_path):
        folder, _ = saved(tmp_path, "qwen2")
        self.shard(folder)
        (folder / "model-00002-of-00002.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors: is missing"):
            load_hugging_face(folder)

    def test_an_index_of_other_tensors_is_refused(self, tmp_path):
        folder, _ = saved(tmp_path, "qwen2")
        places = self.shard(folder)
        self.write_index(folder, {**places, "more": next(iter(places.values()))})
        with pytest.raises(CheckpointError, match="disagree about more"):
            load_hugging_face(folder)

    @pytest.mark.parametrize("name", ["../elsewhere.safetensors", 7])
    def test_an_index_cannot_point_out_of_its_folder(self, tmp_path, name):
        folder, _ = saved(tmp_path, "qwen2")
        self.write_index(folder, {"a": name})
        with pytest.raises(CheckpointError, match="no safetensors file of this folder"):
            load_hugging_face(folder)

    def test_an_empty_index_is_refused(self, tmp_path):
        folder, _ = saved(tmp_path, "qwen2")
        self.write_index(folder, {})
        with pytest.raises(CheckpointError, match="no weight_map"):
            load_hugging_face(folder)

    def test_a_pickle_is_left_alone(self, tmp_path):
        folder, _ = saved(tmp_path, "qwen2")
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match="can run code"):
            load_hugging_face(folder)

    def test_no_weights(self, tmp_path):
        folder, _ = saved(tmp_path, "qwen2")
        (folder / "model.safetensors").unlink()
        with pytest.raises(CheckpointError, match="is missing"):
            load_hugging_face(folder)

    @pytest.mark.parametrize("size", [0, 7, 500])
    def test_cut_weights(self, tmp_path, size):
        folder, _ = saved(tmp_path, "qwen2")
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(CheckpointError, match="no safetensors"):
            load_hugging_face(folder)

    @pytest.mark.parametrize(
        ("text", "message"), [("{", "no JSON"), ("[]", "holds list"), (None, "cannot be read")]
    )
    def test_no_config(self, tmp_path, text, message):
        folder, _ = saved(tmp_path, "qwen2")
        path = folder / "config.json"
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            load_hugging_face(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_dtype_is_the_one_asked_for(tmp_path, dtype):
    """A scale is applied in float32 at least, and rounded once."""
    folder, model = saved(tmp_path, "t5")
    loaded = load_hugging_face(folder, dtype=dtype)
    want = model.decoder.blocks[0].self_attn.q_proj.weight
    got = loaded.decoder.blocks[0].self_attn.q_proj.weight
    assert got.dtype == dtype
    assert torch.allclose(got.float(), want.to(dtype).float(), atol=0, rtol=2**-22)


def test_a_half_precision_model_is_saved_as_it_is(tmp_path):
    model = made("llama").to(torch.bfloat16)
    save_hugging_face(tmp_path / "half", model, family="llama")
    tensors = safetensors.torch.load_file(tmp_path / "half" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"


class TestSaving:
    def test_a_second_save_replaces_the_first(self, tmp_path):
        saved(tmp_path, "bert")
        folder, model = saved(tmp_path, "bert")
        assert same(load_hugging_face(folder), model)

    def test_files_of_somebody_else_stay(self, tmp_path):
        (tmp_path / "bert").mkdir()
        (tmp_path / "bert" / "notes.txt").write_text("mine")
        with pytest.raises(CheckpointError, match=r"notes\.txt"):
            saved(tmp_path, "bert")

    def test_extra_keys_are_written(self, tmp_path):
        save_hugging_face(
            tmp_path / "out", made("llama"), family="llama", extra={"eos_token_id": 2}
        )
        assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 2

    def test_extra_keys_cannot_change_the_model(self, tmp_path):
        with pytest.raises(ConfigError, match="hidden_size"):
            save_hugging_face(
                tmp_path / "out", made("llama"), family="llama", extra={"hidden_size": 31}
            )

    def test_a_model_whose_weights_are_not_its_config_s_is_refused(self, tmp_path):
        model = made("llama")
        model.decoder.blocks[0].self_attn.q_proj = nn.Linear(30, 28, bias=False)
        with pytest.raises(CheckpointError, match="added or removed"):
            save_hugging_face(tmp_path / "out", model, family="llama")
        assert not (tmp_path / "out").exists()

    def test_only_models_of_ours(self, tmp_path):
        with pytest.raises(CheckpointError, match="Linear"):
            save_hugging_face(tmp_path / "out", nn.Linear(2, 2), family="llama")

    def test_a_family_that_cannot_hold_the_model(self, tmp_path):
        with pytest.raises(ConfigError, match="no llama model"):
            save_hugging_face(tmp_path / "out", made("qwen2"), family="llama")


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_t5_scales_its_logits_in_the_closing_norm(tied):
    model = build_model(dataclasses.replace(OURS["t5"], tie_embeddings=tied))
    theirs = to_theirs(model.state_dict(), weight_table(model.config, "t5"))
    factor = 30**0.5 if tied else 1.0
    assert torch.allclose(theirs["decoder.final_layer_norm.weight"], torch.full((30,), factor))
    assert torch.equal(theirs["encoder.final_layer_norm.weight"], torch.ones(30))
