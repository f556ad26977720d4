"""What the README promises to a newcomer is there and runs."""

import re
import subprocess
import sys

import pytest
from support.project import ROOT, pyproject

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_the_package_in_five_lines_runs(code):
    assert len([line for line in code.splitlines() if line.strip()]) <= 5
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    promised = re.search(r"print\(.*\)\s*#\s*(.*)", code)[1].strip()
    assert done.stdout.strip() == promised


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    named = {t for block in blocks("bash") for t in re.findall(r"^make (\w+)", block, re.MULTILINE)}
    assert {"book", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize("line", re.findall(r"^glassformer \w+", README, flags=re.MULTILINE))
def test_every_program_line_is_a_command(line):
    assert pyproject()["project"]["scripts"]["glassformer"]
    code = "from glassformer.cli import app; app()"
    command = [sys.executable, "-c", code, *line.split()[1:], "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_relative_link_leads_somewhere():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    links += re.findall(r'src="(?!https?:)([^"]+)"', README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []
