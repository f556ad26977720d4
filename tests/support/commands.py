"""The command line in tests."""

import jaxtyping
from glassformer.cli import app
from typer.testing import CliRunner

__all__ = ["SMALL", "one_clean_line", "run"]

SMALL = ["--preset", "tiny", "--vocab-size", "307", "--length", "13", "--batch-size", "3"]


def run(*arguments, code=0, stdin=None):
    """The command as users run it: without the checks of annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception  # a bug: show where
    assert result.exit_code == code, result.output
    return result


def one_clean_line(result):
    """What was said on stderr, once it is sure that this is one line, and stdout empty."""
    assert result.stdout == "" or "Training a tokenizer" in result.stdout
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr
