"""Looking into the package from a chapter: its real source, and the objects a chapter explains."""

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from glassformer.errors import GlassformerError

__all__ = ["Door", "Shown", "api", "doors", "show_source"]

_PACKAGE = "glassformer"
_ROOT = Path(__file__).resolve().parents[1]
_BOOK = re.compile(r"\bBook:\s*([a-z_]+(?:\s*,\s*[a-z_]+)*)")


@dataclass(frozen=True)
class Shown:
    """Markdown that a notebook displays, stored there once, with a title as its plain text."""

    title: str
    markdown: str

    def __repr__(self) -> str:
        return self.markdown

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.title, "text/markdown": self.markdown}


def show_source(target: Any, *, docstring: bool = True) -> Shown:
    """Show the source of a function, class, method or module as it is installed.

    Args:
        target: the object, from this package or any other that has Python source.
        docstring: whether to keep the docstring of the object itself.

    Raises:
        GlassformerError: if the object has no Python source.
    """
    plain = target if isinstance(target, ModuleType | type) else inspect.unwrap(target)
    try:
        source = textwrap.dedent(inspect.getsource(plain)).rstrip()
    except (OSError, TypeError) as error:
        raise GlassformerError(
            f"{target!r} has no Python source to show; give a function, a class or a module"
        ) from error
    if not docstring:
        source = _without_docstring(source)
    block = f"```python\n{source}\n```"
    name = _full_name(plain)
    link = _api_link(name, getattr(plain, "__qualname__", name.rpartition(".")[2]))
    return Shown(f"source of {name}", f"{block}\n\nIn the API: {link}" if link else block)


def _without_docstring(source: str) -> str:
    """The same lines less those of the docstring; what remains is still the real source."""
    tree = ast.parse(source)
    owner = tree
    if len(tree.body) == 1 and isinstance(
        tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ):
        owner = tree.body[0]  # type: ignore[assignment]
    if ast.get_docstring(owner) is None or len(owner.body) < 2:
        return source
    text = owner.body[0]
    lines = source.splitlines()
    del lines[text.lineno - 1 : text.end_lineno]
    while text.lineno - 1 < len(lines) and not lines[text.lineno - 1].strip():
        del lines[text.lineno - 1]
    return "\n".join(lines)


def _full_name(plain: Any) -> str:
    if isinstance(plain, ModuleType):
        return plain.__name__
    return f"{plain.__module__}.{plain.__qualname__}"


def _api_link(full_name: str, shown: str) -> str:
    """A link from a chapter's page to the API page of an object of this package."""
    parts = full_name.split(".")
    if parts[0] != _PACKAGE or len(parts) < 2:
        return ""
    private = next((i for i, part in enumerate(parts) if part.startswith("_")), None)
    if private is not None:  # it has no entry of its own: its class has
        parts = parts[:private]
        full_name, shown = ".".join(parts), parts[-1]
        if not shown[0].isupper():
            return ""
    # the short name: a phone cannot break a line inside a dotted one
    return f"[`{shown}`](api/{parts[1]}.html#{full_name})"


@dataclass(frozen=True, kw_only=True, order=True)
class Door:
    """A public object of the package and the chapters that its docstring names."""

    name: str
    summary: str
    chapters: tuple[str, ...]


@functools.cache
def doors() -> tuple[Door, ...]:
    """Every public class and function whose docstring says ``Book: <chapter>``.

    Read from the source files, so that nothing heavy is imported.
    """
    return tuple(sorted(_find_doors(_ROOT)))


def _find_doors(root: Path) -> Iterator[Door]:
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).with_suffix("")
        parts = [part for part in relative.parts if part != "__init__"]
        if any(part.startswith("_") for part in parts):
            continue
        module = ".".join([_PACKAGE, *parts])
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            text = ast.get_docstring(node) or ""
            named = ",".join(_BOOK.findall(text)).replace(" ", "")
            if named:
                yield Door(
                    name=f"{module}.{node.name}",
                    summary=_summary(text),
                    chapters=tuple(named.split(",")),
                )


def _summary(docstring: str) -> str:
    """The first paragraph of a docstring on one line, as Markdown."""
    first = _BOOK.sub("", " ".join(docstring.split("\n\n")[0].split())).strip()
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", first).replace("``", "`")


def api(chapter: str) -> Shown:
    """List the public objects that a chapter explains, each with a link to its API page.

    Raises:
        GlassformerError: if no docstring names the chapter.
    """
    mine = [door for door in doors() if chapter in door.chapters]
    if not mine:
        named = sorted({name for door in doors() for name in door.chapters})
        raise GlassformerError(
            f"no docstring says 'Book: {chapter}'; named are {', '.join(named) or 'no chapters'}"
        )
    lines = [
        f"- {_api_link(door.name, door.name.rpartition('.')[2])}: {door.summary}" for door in mine
    ]
    return Shown(f"what the chapter {chapter} explains", "\n".join(lines))
