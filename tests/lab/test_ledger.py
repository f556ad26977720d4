"""The ledger is built from what the chapters store."""

import json
from pathlib import Path

import nbformat
import pytest
from glassformer.errors import GlassformerError
from glassformer.lab import ledger
from glassformer.lab.trials import Claim, Trial, claims

CLAIMS = {
    name: Claim(
        id=name, chapter="attention", source="1", claim="a | b", printed="", criterion="seen"
    )
    for name in ("A-1", "A-2", "A-3")
}


def write(book: Path, chapter: str, *trials: Trial) -> None:
    cells = []
    for trial in trials:
        output = nbformat.v4.new_output("execute_result", trial._repr_mimebundle_())
        cells.append(nbformat.v4.new_code_cell("t", id=f"try-{trial.claim.id}", outputs=[output]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x"), *cells])
    (book / f"{chapter}.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")


def test_rows_merge_claims_and_stored_trials(tmp_path: Path) -> None:
    write(tmp_path, "attention", Trial(CLAIMS["A-2"], "holds if", "If so.", {"n": 2}))
    rows = ledger.rows(tmp_path, CLAIMS)
    assert [row.verdict for row in rows] == [None, "holds if", None]
    assert rows[1].finding == "If so."
    assert rows[1].measured == {"n": 2}
    assert rows[1].link == "attention.html#trial-A-2"
    assert rows[0].link is None


def test_counts(tmp_path: Path) -> None:
    write(tmp_path, "attention", Trial(CLAIMS["A-1"], "holds", "x"))
    write(tmp_path, "masking", Trial(CLAIMS["A-3"], "does not hold", "y"))
    assert ledger.counts(ledger.rows(tmp_path, CLAIMS)) == {
        "total": 3,
        "tried": 2,
        "by_verdict": {
            "holds": 1,
            "holds if": 0,
            "does not hold": 1,
            "not measurable here": 0,
        },
    }


def test_a_claim_tried_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "attention", Trial(CLAIMS["A-1"], "holds", "x"))
    write(tmp_path, "masking", Trial(CLAIMS["A-1"], "holds", "x"))
    with pytest.raises(GlassformerError, match="A-1 is tried twice: in attention, cell try-A-1"):
        ledger.rows(tmp_path, CLAIMS)


def test_an_unknown_claim_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "attention", Trial(CLAIMS["A-1"], "holds", "x"))
    with pytest.raises(GlassformerError, match="attention, cell try-A-1: A-1 is no claim"):
        ledger.rows(tmp_path, {})


def test_a_damaged_notebook_is_named(tmp_path: Path) -> None:
    (tmp_path / "attention.ipynb").write_text("{", encoding="utf-8")
    with pytest.raises(GlassformerError, match=r"attention\.ipynb is no notebook"):
        ledger.rows(tmp_path, CLAIMS)


def test_json_counts_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = next(iter(claims().values()))
    write(tmp_path, "attention", Trial(first, "holds", "x"))
    assert ledger.main(["--json", "--book", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["total"] == len(claims())
    assert printed["tried"] == printed["by_verdict"]["holds"] == 1


def test_counts_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger.main(["--book", str(tmp_path)]) == 0
    assert f"0 of {len(claims())} claims tried" in capsys.readouterr().out


def test_no_book(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger.main(["--book", str(tmp_path / "none")]) == 1
    assert "--book FOLDER" in capsys.readouterr().err


def test_a_refused_ledger_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "attention", Trial(CLAIMS["A-1"], "holds", "x"))
    assert ledger.main(["--book", str(tmp_path)]) == 1
    assert "A-1 is no claim" in capsys.readouterr().err


def test_joined_and_split_text_read_alike() -> None:
    assert ledger._finding(["A: holds\n", "Finding: so."]) == "so."
    assert ledger._finding("A: holds\nFinding: so.") == "so."
