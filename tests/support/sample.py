"""A small chapter made for the tests: digits, figures and noise."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FIGURES = """\
import matplotlib
import matplotlib.pyplot as plt
from matplotlib_inline.backend_inline import set_matplotlib_formats

get_ipython().run_line_magic("matplotlib", "inline")
matplotlib.rcParams["svg.hashsalt"] = "sample"
"""

SVG = """\
set_matplotlib_formats("svg", metadata={"Date": None, "Creator": None})
fig, ax = plt.subplots(figsize=(2, 1))
ax.plot([1, 2, 4])
plt.show()"""

PNG = """\
set_matplotlib_formats("png", metadata={"Software": None})
fig, ax = plt.subplots(figsize=(2, 1))
ax.plot([4, 2, 1])
plt.show()"""


def with_alt(source: str, alt: str) -> nbformat.NotebookNode:
    return new_code_cell(source, metadata={"mystnb": {"image": {"alt": alt}}})


def tiny() -> nbformat.NotebookNode:
    """Digits, an SVG, a PNG, and a cell whose output is noise."""
    cells = [
        new_markdown_cell("# A sample\n\n## Setup", id="front"),
        new_code_cell(FIGURES.strip(), id="figures"),
        new_code_cell("print('loss', 3.142)\n[1, 2, 3]", id="digits"),
        with_alt(SVG, "a line that rises ever faster"),
        with_alt(PNG, "a line that falls ever slower"),
        new_code_cell(
            "import time\n\nprint(time.perf_counter_ns())",
            id="noise",
            metadata={"tags": ["nbval-ignore-output"]},
        ),
        new_code_cell("print('time passes:', time.perf_counter_ns() > 0)", id="facts"),
    ]
    cells[3].id, cells[4].id = "svg", "png"
    return new_notebook(cells=cells)
