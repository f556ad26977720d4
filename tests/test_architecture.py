"""The house stands: each floor rests on lower ones, the front door is light, every door is named.

Floors are those of the design: a module imports only from its own floor and from those below it.
"""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache

import pytest
from support.chapters import planned_chapters
from support.project import ROOT

SOURCE = ROOT / "package"
PACKAGE = "glassformer"

# name within the package -> floor; the longest matching prefix decides
FLOORS = {
    "errors": 0,
    "_files": 0,
    "config": 0,
    "devices": 0,
    "functional": 1,
    "kv_cache": 1,
    "nn.embeddings": 2,
    "nn.rotary": 2,
    "nn.layer_norm": 2,
    "nn.multi_head": 2,
    "nn.feed_forward": 2,
    "nn.moe": 2,
    "nn.relative": 2,
    "nn.blocks": 3,
    "nn.init": 3,
    "nn": 3,
    "models": 4,
    "generation": 5,
    "training": 5,
    "evaluation": 5,
    "pruning": 5,
    "introspect": 5,
    "interop": 5,
    "quantization": 5,
    "inference": 5,
    "visualization": 5,
    "pretrained": 5,
    "translation": 5,
    "data": 5,
    "costs": 5,
    "lab": 6,
    "exercises": 6,
    "cli": 6,
    "__main__": 6,
}
# they stand high up, but need nothing of the floors between
ONLY_THE_GROUND = ("data", "costs")
# the package's __init__ opens the front door to every floor
FRONT_DOOR = 7

# modules whose public objects name the chapter that explains them
EXPLAINED = (
    "functional",
    "nn",
    "models",
    "kv_cache",
    "training",
    "generation",
    "evaluation",
    "data",
    "costs",
    "introspect",
    "interop",
    "inference",
    "pruning",
    "quantization",
    "translation",
    "pretrained",
)

HEAVY = (
    "IPython",
    "gguf",
    "matplotlib",
    "pandas",
    "rapidfuzz",
    "rich",
    "sacrebleu",
    "safetensors",
    "scipy",
    "sentencepiece",
    "tensorboard",
    "tokenizers",
    "torchao",
    "transformers",
    "typer",
    "yaml",
)


def module_name(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules():
    return {module_name(path): path for path in sorted((SOURCE / PACKAGE).rglob("*.py"))}


MODULES = modules()


@cache
def tree_of(name):
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def inner(name):
    """The name within the package: "glassformer.nn.blocks" -> "nn.blocks"."""
    return name.removeprefix(PACKAGE).removeprefix(".")


def part_of(name):
    """The entry of FLOORS that a module belongs to, or None."""
    pieces = inner(name).split(".")
    prefixes = (".".join(pieces[:size]) for size in range(len(pieces), 0, -1))
    return next((prefix for prefix in prefixes if prefix in FLOORS), None)


def floor_of(name):
    return FRONT_DOOR if name == PACKAGE else FLOORS[part_of(name)]


def imported(tree, name, *, is_package):
    """Every module of the package that a tree imports, wherever the import stands."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = name.split(".") if is_package else name.split(".")[:-1]
                above = here[: len(here) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            # "from package import module" imports the module; "from module import name" the module
            for alias in node.names:
                inside = f"{base}.{alias.name}"
                found.add(inside if inside in MODULES else base)
        elif isinstance(node, ast.Call):
            found.update(_imported_by_call(node))
    return {target for target in found if target.split(".")[0] == PACKAGE}


def _imported_by_call(node):
    """The fixed part of ``import_module("glassformer.x")``, also of an f-string."""
    called = getattr(node.func, "attr", getattr(node.func, "id", None))
    if called not in {"import_module", "__import__"} or not node.args:
        return
    argument = node.args[0]
    if isinstance(argument, ast.JoinedStr) and argument.values:
        argument = argument.values[0]
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value.rstrip(".")


def forbidden(name, targets):
    """Those targets that a module must not import."""
    part = part_of(name)
    if part in ONLY_THE_GROUND:
        return {target for target in targets if floor_of(target) > 0 and part_of(target) != part}
    return {target for target in targets if floor_of(target) > floor_of(name)}


def test_every_module_has_a_floor():
    homeless = [name for name in MODULES if name != PACKAGE and part_of(name) is None]
    assert homeless == [], "give these modules a floor in FLOORS, as DESIGN.md does"
    assert f"{PACKAGE}.functional.attention" in MODULES, "the package was not found"


@pytest.mark.parametrize("name", [name for name in MODULES if name != PACKAGE])
def test_imports_point_down(name):
    targets = imported(tree_of(name), name, is_package=MODULES[name].name == "__init__.py")
    assert sorted(forbidden(name, targets)) == [], f"{name} is on floor {floor_of(name)}"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("glassformer.config", "import glassformer.models"),
        ("glassformer.functional.attention", "from glassformer.nn import Block"),
        ("glassformer.functional.attention", "from glassformer import attend"),
        ("glassformer.nn.rotary", "from glassformer.nn.blocks import Block"),
        ("glassformer.nn.rotary", "from .blocks import Block"),
        ("glassformer.nn.rotary", "from . import blocks"),
        ("glassformer.models.decoder", "def f():\n    from glassformer.lab import setup"),
        ("glassformer.models.decoder", "from glassformer import lab"),
        ("glassformer.training.loop", "import_module(f'glassformer.exercises.{chapter}')"),
        ("glassformer.data.text", "from glassformer.models import Decoder"),
        ("glassformer.data.text", "from glassformer.functional import attend"),
        ("glassformer.costs", "from glassformer.nn.init import init_weights"),
    ],
)
def test_an_import_that_points_up_is_found(name, code):
    targets = imported(ast.parse(code), name, is_package=False)
    assert forbidden(name, targets)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("glassformer.functional.attention", "from glassformer.functional.masking import f"),
        ("glassformer.models.decoder", "from glassformer.nn import Block\nimport torch.nn"),
        ("glassformer.generation.generate", "from glassformer.data.batches import pad_batch"),
        ("glassformer.data.windows", "from .text import Corpus\nfrom ..errors import DataError"),
        ("glassformer.lab.session", "from glassformer import lab, models"),
    ],
)
def test_an_import_that_points_down_is_allowed(name, code):
    targets = imported(ast.parse(code), name, is_package=False)
    assert targets
    assert forbidden(name, targets) == set()


def loaded_after(statement):
    """The modules that a fresh interpreter holds after one statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def added_to_torch():
    """What `import glassformer` loads beyond what `import torch` has loaded."""
    return loaded_after(f"import {PACKAGE}") - loaded_after("import torch")


def test_the_front_door_is_light(added_to_torch):
    heavy = {name for name in added_to_torch if name.split(".")[0] in HEAVY}
    assert heavy == set()


def test_the_front_door_adds_few_packages(added_to_torch):
    # what makes an import slow is other people's packages: besides our own, jaxtyping and what
    # it needs are all that may come along (torch itself brings numpy)
    added = {name.split(".")[0] for name in added_to_torch} - set(sys.stdlib_module_names)
    added = {name for name in added if not name.startswith(("_", "torch"))}
    assert added <= {PACKAGE, "jaxtyping", "wadler_lindig", "typing_extensions", "numpy"}


def test_the_front_door_wakes_no_compiler(added_to_torch):
    # torch loads its compiler late, because it takes longer than the rest together
    slow = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.onnx")
    assert {name for name in added_to_torch if name.startswith(slow)} == set()


def test_the_front_door_stays_on_the_lower_floors(added_to_torch):
    ours = {name for name in added_to_torch if name.split(".")[0] == PACKAGE}
    assert f"{PACKAGE}.models.decoder" in ours
    upstairs = {name for name in ours if name != PACKAGE and floor_of(name) == 6}
    assert upstairs == set()


def all_of(tree):
    """The names of a module's ``__all__``; none where it has none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return set(ast.literal_eval(node.value))
    return set()


def public_objects(tree):
    """The functions and classes that a module offers: without an underscore, or in ``__all__``."""
    offered = all_of(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # the signatures before an overloaded function have no docstring of their own
            overload = any("overload" in ast.unparse(mark) for mark in node.decorator_list)
            if not overload and (node.name in offered or not node.name.startswith("_")):
                yield node


def named_chapters(docstring):
    """The slugs behind "Book:" at the end of a line: one, or several with commas between."""
    named = re.findall(r"\bBook: ([a-z_]+(?:, [a-z_]+)*)\.?$", docstring, flags=re.MULTILINE)
    return [slug for line in named for slug in line.split(", ")]


def explained_modules():
    return [name for name in MODULES if inner(name).split(".")[0] in EXPLAINED]


def test_the_explained_modules_exist():
    assert {inner(name).split(".")[0] for name in explained_modules()} == set(EXPLAINED)


@pytest.mark.parametrize("name", explained_modules())
def test_every_public_object_names_its_chapter(name):
    known = planned_chapters()
    unnamed = []
    for node in public_objects(tree_of(name)):
        named = named_chapters(ast.get_docstring(node) or "")
        if not named or not set(named) <= known:
            unnamed.append((node.name, named))
    assert unnamed == [], "a public docstring ends with a line such as 'Book: attention'"


@pytest.mark.parametrize(
    ("docstring", "named"),
    [
        ("Weights.\n\nBook: attention", ["attention"]),
        ("Source: Ba et al. 2016. Book: layer_norm", ["layer_norm"]),
        ("Steps.\n\nBook: training, kv_cache\n\nMore.", ["training", "kv_cache"]),
        ("The Book: it is long", []),
        ("No chapter.", []),
    ],
)
def test_the_line_that_names_a_chapter(docstring, named):
    assert named_chapters(docstring) == named


@pytest.mark.parametrize("name", [name for name in MODULES if all_of(tree_of(name))])
def test_all_lists_what_is_there(name):
    tree = tree_of(name)
    defined = {bound for node in ast.walk(tree) for bound in _bound_names(node)}
    assert sorted(all_of(tree) - defined) == []


def _bound_names(node):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
