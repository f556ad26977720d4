"""pyproject.toml, constraints.txt, environment.yml and the workflows agree on versions."""

import re

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from support.project import ROOT, constraints, normalised, pyproject

PROJECT = pyproject()["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]


def conda_environment():
    """The conda packages of environment.yml and the lines of its pip section."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    pip = next(entry["pip"] for entry in listed if isinstance(entry, dict))
    return [entry for entry in listed if isinstance(entry, str)], pip


@pytest.mark.parametrize("line", sorted(set(DIRECT)))
def test_every_dependency_is_pinned_within_its_range(line):
    requirement = Requirement(line)
    pinned = constraints()[normalised(requirement.name)]
    assert requirement.specifier.contains(pinned), f"{pinned} is outside {line}"


def test_torch_has_no_upper_bound():
    """Colab's torch must satisfy the range, whichever it is next month."""
    torch = Requirement(next(line for line in DIRECT if line.startswith("torch")))
    assert [clause.operator for clause in torch.specifier] == [">="]


def test_conda_installs_the_same_versions():
    conda, pip = conda_environment()
    python = next(entry.split("=")[1] for entry in conda if entry.startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python}.0")
    assert "--constraint constraints.txt" in pip
    (editable,) = [line for line in pip if line.startswith("--editable")]
    assert set(re.search(r"\[(.*)\]", editable)[1].split(",")) == set(EXTRAS)
    pins = dict(line.split("==") for line in pip if "==" in line)
    assert {"torch", "numpy", "matplotlib"} <= set(pins)
    assert pins == {name: constraints()[name] for name in pins}


def test_make_installs_all_extras():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(re.search(r"--editable '\.\[(.*?)\]'", text)[1].split(",")) == set(EXTRAS)
    assert "--constraint constraints.txt" in text


def test_the_weekly_job_uses_versions_that_we_allow():
    text = (ROOT / ".github/workflows/colab.yml").read_text(encoding="utf-8")
    pins = dict(re.findall(r"([a-z-]+)==([\d.]+)", text))
    allowed = {normalised(Requirement(line).name): Requirement(line) for line in DIRECT}
    both = set(pins) & set(allowed)
    assert {"torch", "numpy", "matplotlib"} <= both
    assert all(allowed[name].specifier.contains(pins[name]) for name in both)


@pytest.mark.parametrize(
    "name", ["constraints.txt", "environment.yml", "pyproject.toml", "Makefile"]
)
def test_no_file_names_a_package_host(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    hosts = [line for line in lines if re.search(r"https?://(?!github\.com|localhost)", line)]
    assert hosts == []
