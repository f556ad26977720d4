"""Read the files of a model: JSON and safetensors, in one piece or in shards.

Book: evolution
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer import _files as files
from glassformer.errors import CheckpointError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: the file is missing or holds something else.

    Book: evolution
    """
    data = files.read_file(path, remedy=f"give a folder with {path.name}")
    return files.read_json(path, data, remedy="copy the file again")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder by name.

    Raises:
        CheckpointError: a file is missing, damaged or a pickle, or an index and its shards
            disagree.

    Book: evolution
    """
    if not (folder / INDEX).exists():
        return _read_shard(folder / WEIGHTS)
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{folder / INDEX}: has no weight_map; copy the file again")
    tensors: dict[str, Tensor] = {}
    for shard in sorted({str(place) for place in places.values()}):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{folder / INDEX}: {shard!r} is no safetensors file of this folder"
            )
        tensors |= _read_shard(folder / shard)
    absent = sorted(set(places) ^ set(tensors))
    if absent:
        raise CheckpointError(
            f"{folder / INDEX}: the index and its shards disagree about {', '.join(absent[:3])}; "
            "copy all files again"
        )
    return tensors


def _read_shard(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        pickled = path.with_name("pytorch_model.bin")
        hint = (
            f"{pickled.name} is a pickle, which can run code when it is read, and is left alone; "
            "save the model as safetensors first"
            if pickled.exists()
            else "give a folder with the weights as safetensors"
        )
        raise CheckpointError(f"{path}: is missing; {hint}")
    return files.read_tensors(path, remedy="copy the file again")
