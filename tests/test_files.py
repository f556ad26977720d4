"""A file is there whole or not at all, whoever else writes and whatever fails."""

import os

import pytest
from glassformer._files import write_whole
from glassformer.data import SymbolVocabulary


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "a.txt"
    write_whole(path, b"old")
    path.chmod(0o640)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, where, error):
    """The half-written file stayed, and filled a full disk further."""

    def fail(*_):
        raise error

    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    target = {"fsync": os, "replace": type(path)}[where]
    with monkeypatch.context() as patch:
        patch.setattr(target, where, fail)
        with pytest.raises(type(error)):
            write_whole(path, b"half a f")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_at_once_never_meet(tmp_path, monkeypatch):
    """They wrote into one temporary file, and the slower one found it gone."""
    path, fsync, begun = tmp_path / "a.txt", os.fsync, []

    def interrupted(descriptor):
        if not begun:
            begun.append("first")
            write_whole(path, b"second")
            assert path.read_bytes() == b"second"
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", interrupted)
    write_whole(path, b"first")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_vocabulary_leaves_no_other_file(tmp_path):
    SymbolVocabulary(("a", "b")).save(tmp_path / "v.json")
    assert [path.name for path in tmp_path.iterdir()] == ["v.json"]
