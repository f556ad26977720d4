"""The source that chapters show is the package's own, and the list of a chapter's objects."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import glassformer.functional.attention as attention_module
import pytest
from glassformer import lab
from glassformer.errors import GlassformerError
from glassformer.functional import attend
from glassformer.lab import source
from glassformer.nn import Block, MultiHeadAttention


def test_source_is_that_of_the_file() -> None:
    shown = repr(lab.show_source(attend))
    text = Path(attention_module.__file__).read_text(encoding="utf-8")
    code = shown.removeprefix("```python\n").partition("\n```")[0]
    assert code.startswith("def attend(")
    assert code in text


def test_source_without_its_docstring() -> None:
    full, short = repr(lab.show_source(attend)), repr(lab.show_source(attend, docstring=False))
    assert '"""' in full
    assert '"""' not in short
    assert set(short.splitlines()) < set(full.splitlines())


def test_source_links_to_the_page_of_the_object() -> None:
    name = "glassformer.functional.attention.attend"
    assert repr(lab.show_source(attend)).endswith(
        f"In the API: [`attend`](api/functional.html#{name})"
    )


def test_a_method_is_shown_from_its_first_column() -> None:
    shown = repr(lab.show_source(MultiHeadAttention.forward, docstring=False))
    assert "\ndef forward(" in shown
    name = "MultiHeadAttention.forward"
    assert f"[`{name}`](api/nn.html#glassformer.nn.multi_head.{name})" in shown


def test_a_module_is_shown_whole() -> None:
    shown = repr(lab.show_source(attention_module, docstring=False))
    assert "def attend(" in shown
    assert "Conventions, the same on every path" not in shown


def test_other_libraries_have_no_page_here() -> None:
    assert repr(lab.show_source(inspect.unwrap)).endswith("```")


def test_what_has_no_docstring_stays_as_it_is() -> None:
    def bare() -> int:
        return 3

    assert "return 3" in repr(lab.show_source(bare, docstring=False))


@pytest.mark.parametrize("target", [3, len])
def test_what_has_no_source(target: object) -> None:
    with pytest.raises(GlassformerError, match="no Python source"):
        lab.show_source(target)


def test_output_is_stored_once() -> None:
    bundle = lab.show_source(attend)._repr_mimebundle_()
    assert bundle["text/plain"] == "source of glassformer.functional.attention.attend"
    assert "def attend(" in bundle["text/markdown"]


def test_doors_are_those_of_the_docstrings() -> None:
    expected = {
        f"glassformer.functional.attention.{node.name}"
        for node in ast.parse(inspect.getsource(attention_module)).body
        if isinstance(node, ast.FunctionDef)
        and "Book: attention" in (ast.get_docstring(node) or "")
    }
    found = {door.name for door in source.doors() if ".functional.attention." in door.name}
    assert "glassformer.functional.attention.attend" in expected
    assert found == expected


def test_api_lists_every_door_with_a_link() -> None:
    shown = repr(lab.api("attention"))
    names = [door.name for door in source.doors() if "attention" in door.chapters]
    assert len(shown.splitlines()) == len(names)
    assert all(f"#{name})" in shown for name in names)
    assert "Book:" not in shown
    assert ":func:" not in shown


@pytest.mark.parametrize("door", source.doors(), ids=lambda door: door.name)
def test_a_door_opens_from_the_front(door: source.Door) -> None:
    """What a chapter lists is no internal helper: its floor's ``__all__`` offers it."""
    package, floor, *_, name = door.name.split(".")
    assert name in import_module(f"{package}.{floor}").__all__, "or put it into a _module"


def test_api_of_an_unknown_chapter() -> None:
    with pytest.raises(GlassformerError, match=r"'Book: atention'; named are .*attention"):
        lab.api("atention")


def test_a_docstring_may_name_several_chapters(tmp_path: Path) -> None:
    text = 'def f():\n    """Does :func:`g`.\n\n    Book: masking, kv_cache\n    """\n'
    (tmp_path / "thing.py").write_text(text + text.replace("def f", "def _hidden"))
    (tmp_path / "_private.py").write_text(text)
    assert list(source._find_doors(tmp_path)) == [
        source.Door(
            name="glassformer.thing.f", summary="Does `g`.", chapters=("masking", "kv_cache")
        )
    ]


def test_a_private_method_leads_to_its_class() -> None:
    shown = repr(lab.show_source(Block._residual))
    assert shown.endswith("In the API: [`Block`](api/nn.html#glassformer.nn.blocks.Block)")


def test_what_is_private_to_a_module_leads_nowhere() -> None:
    assert "In the API" not in repr(lab.show_source(source._api_link))
