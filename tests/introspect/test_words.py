"""Cross-attention from word to word."""

import pytest
import torch
from glassformer import load_pretrained
from glassformer.data import generate_triples, train_tokenizer
from glassformer.evaluation import align
from glassformer.introspect import capture_attention, word_maps
from glassformer.pruning import prune_heads
from support.core import scrambled, translator_config
from torch.testing import assert_close

TOKENIZER = train_tokenizer(["a b c - .", "b a c. -", "c c a b - ."] * 4, 268)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return scrambled(translator_config(vocab_size=268, n_encoder_layers=1))


def test_each_row_stands_for_the_word_it_writes_and_for_the_one_it_has_read():
    """By hand, in a language of one piece a word: bos moves the rows by one."""
    tokenizer = train_tokenizer(["a b c", "b a c", "c c a b"] * 4, 266)
    model = scrambled(translator_config(vocab_size=266))
    source, target = tokenizer.encode("b c", eos=True), tokenizer.encode("c b c", bos=True)
    assert (len(source), len(target)) == (3, 4)
    with capture_attention(model) as maps, torch.no_grad():
        model.eval()(torch.tensor([source]), torch.tensor([target]))
    words = word_maps(model, tokenizer, "b c", "c b c")
    cross = {name: map_[0] for name, map_ in maps.items() if "cross_attn" in name}
    assert words.writes.keys() == words.reads.keys() == cross.keys()
    for name, map_ in cross.items():
        assert_close(words.writes[name], map_[:, :3, :2])
        assert_close(words.reads[name], map_[:, 1:, :2])


def test_full_stops_belong_to_no_word_and_a_lone_dash_is_one_without_pieces(model):
    words = word_maps(model, TOKENIZER, "a c b.", "c - a.")
    for map_ in words.writes.values():
        assert map_.shape == (3, 3, 3)
        assert map_.isfinite().all()
        assert (map_[:, 1] == 0).all()
        assert (map_.sum(dim=-1) < 1).all()


def test_bytes_belong_to_a_word_if_they_spell_a_letter(model):
    """Neither … nor é has a piece of its own here: each is two or three single bytes."""
    words = word_maps(model, TOKENIZER, "é a", "… é")
    for map_ in words.reads.values():
        assert map_.shape == (3, 2, 2)
        assert (map_[:, 0] == 0).all()
        assert (map_[:, 1] > 0).all()


def test_nothing_stays_behind(model):
    model.train()
    word_maps(model, TOKENIZER, "a", "b")
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_layer_without_heads_has_no_map(model):
    name = "decoder.blocks.0.cross_attn"
    pruned = prune_heads(model, {name: range(3)})
    words = word_maps(pruned, TOKENIZER, "a b", "c b a")
    assert name not in words.writes
    assert len(words.writes) == model.config.n_layers - 1


def test_the_shipped_translator_knows_its_words():
    """Mean of the last layer, against the gold of the grammar; by lot one in eight is right."""
    translator = load_pretrained("tatoeba-de-en")
    right = total = 0
    for triple in generate_triples(20):
        maps = word_maps(
            translator.model, translator.tokenizer, triple.german_text, triple.english_text
        )
        links = align(maps.writes["decoder.blocks.2.cross_attn"].mean(dim=0))
        right += len(links & set(triple.german_english))
        total += len(links)
    assert right / total > 0.6
