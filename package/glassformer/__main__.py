"""``python -m glassformer`` is the command ``glassformer``."""

from glassformer.cli import app

if __name__ == "__main__":
    app(prog_name="glassformer")
