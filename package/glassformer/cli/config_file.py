"""Options of a command from a YAML or TOML file; what is typed wins over what is written.

Book: training
"""

import tomllib
from pathlib import Path
from typing import Any

from glassformer.cli.terminal import clean_errors
from glassformer.errors import ConfigError, did_you_mean

__all__ = ["read_defaults"]


@clean_errors
def read_defaults(context: Any, config: Path | None) -> Path | None:
    """Make the values of a file the defaults of the command that is about to run.

    Raises:
        ConfigError: the file cannot be read, or has a key that is no option of the command.
    """
    if config is not None:
        options = {
            param.name: param
            for param in context.command.params
            if param.name and param.name not in ("config", "help", "resume")
        }
        context.default_map = _checked(config, _parse(config), options)
    return config


def _parse(path: Path) -> dict[str, Any]:
    """The keys and values of a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8"
        raise ConfigError(f"--config {path}: cannot be read ({reason}); check the path") from error
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"--config {path}: no TOML ({error})") from error
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--config {path}: may be a file.yaml, file.yml or file.toml")
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path}: no YAML ({error})") from error
    if not isinstance(data or {}, dict):
        raise ConfigError(f"--config {path}: needs lines such as `steps: 1000`, one an option")
    return data or {}


def _checked(path: Path, data: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The values by the names of parameters, once each is an option and a plain value."""
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = str(key).replace("-", "_")
        if name not in options:
            known = [option.replace("_", "-") for option in options]
            hint = did_you_mean(str(key).replace("_", "-"), known)
            raise ConfigError(f"--config {path}: unknown option {key!r}; {hint}")
        if name in values:
            raise ConfigError(f"--config {path}: {key!r} is given twice; remove one")
        if value is None:  # an empty line: as if it were not there
            continue
        if not _fits(value, options[name]):
            raise ConfigError(
                f"--config {path}: {key}: {value!r} is no value of this option; write it as it "
                "would be typed, and true or false for a switch"
            )
        values[name] = value
    return values


def _fits(value: Any, option: Any) -> bool:
    """A switch takes true and false, and nothing else does; lists are for several arguments."""
    if option.nargs == -1 or getattr(option, "multiple", False):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if getattr(option, "is_flag", False):
        return isinstance(value, bool)
    return isinstance(value, str | int | float) and not isinstance(value, bool)
