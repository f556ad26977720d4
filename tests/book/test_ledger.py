"""Every claim is tried once, by its own chapter, under its criterion."""

from pathlib import Path

from glassformer.lab import ledger
from glassformer.lab.trials import CLAIMS_FILE, VERDICTS, claims
from support.chapters import planned_chapters
from support.project import BOOK, ROOT


def test_claims_belong_to_planned_chapters() -> None:
    assert {claim.chapter for claim in claims().values()} <= planned_chapters()


def test_book_shares_the_claims_of_the_package() -> None:
    shared = BOOK / "claims.yaml"
    assert shared.is_symlink()
    assert not Path(shared.readlink()).is_absolute()
    assert shared.resolve() == CLAIMS_FILE.resolve()
    assert shared.resolve().is_relative_to(ROOT)


def test_no_claim_is_unknown_or_tried_twice() -> None:
    assert len(ledger.rows(BOOK)) == len(claims())


def test_stored_criteria_and_verdicts_are_those_of_the_claims() -> None:
    for tried in ledger.trials(BOOK):
        claim = claims()[tried.id]
        assert tried.criterion == claim.criterion, f"{tried.id}: record the chapter again"
        assert tried.verdict in VERDICTS
        assert tried.finding
        assert tried.chapter == claim.chapter, f"{tried.id} belongs to {claim.chapter}"


def test_a_partial_success_counts_only_where_the_criterion_says_so() -> None:
    for tried in ledger.trials(BOOK):
        if tried.verdict == "holds if":
            assert "'holds if'" in tried.criterion, f"{tried.id}: anything less does not hold"


def test_no_claim_is_left_untried() -> None:
    assert [row.id for row in ledger.rows(BOOK) if row.verdict is None] == []
