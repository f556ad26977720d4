"""Two runs never save into one folder."""

import errno
import subprocess
import sys

import pytest
from glassformer.errors import CheckpointError
from glassformer.training import lock, sole_run

HOLD = """
import sys
from glassformer.training.lock import sole_run
with sole_run(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path):
    with sole_run(tmp_path / "a" / "run"):
        with (
            pytest.raises(CheckpointError, match="another run saves into it"),
            sole_run(tmp_path / "a" / "run"),
        ):
            pass
        with sole_run(tmp_path / "a" / "other"):
            pass
    with sole_run(tmp_path / "a" / "run"):
        pass
    assert list((tmp_path / "a").iterdir()) == []


def test_an_error_gives_the_folder_back(tmp_path):
    with pytest.raises(KeyError), sole_run(tmp_path / "run"):
        raise KeyError
    with sole_run(tmp_path / "run"):
        pass


def test_a_killed_run_gives_the_folder_back(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(CheckpointError, match="another run"), sole_run(tmp_path / "run"):
        pass
    process.kill()
    process.communicate()
    with sole_run(tmp_path / "run"):
        pass


def test_a_folder_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(CheckpointError, match=r"\.run\.lock: cannot be written"),
        sole_run(tmp_path / "file" / "run"),
    ):
        pass


def test_only_the_first_of_several_processes_holds_it(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "rank", lambda: 1)
    with sole_run(tmp_path / "run"), sole_run(tmp_path / "run"):
        assert list(tmp_path.iterdir()) == []


def test_where_files_cannot_be_locked_nothing_is_checked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with sole_run(tmp_path / "run"), sole_run(tmp_path / "run"):
        assert list(tmp_path.iterdir()) == []


def test_a_filesystem_without_locks_is_no_other_run(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def unable(file, flags):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unable)
    with sole_run(tmp_path / "run"), sole_run(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []
