"""What a chapter uses: set-up, trials, measurements and a look at the package's own source.

A chapter writes ``from glassformer import lab`` and needs nothing else of this folder. The two
commands beside it are ``python -m glassformer.lab.record`` (re-execute chapters and write them
in canonical form) and ``python -m glassformer.lab.ledger`` (count the verdicts).
"""

from glassformer.lab.measure import (
    Timings,
    flops,
    interleaved,
    peak_bytes,
    release,
    saved_bytes,
)
from glassformer.lab.session import setup
from glassformer.lab.source import api, show_source
from glassformer.lab.trials import VERDICTS, Claim, Trial, claims, trial, verdict

__all__ = [
    "VERDICTS",
    "Claim",
    "Timings",
    "Trial",
    "api",
    "claims",
    "flops",
    "interleaved",
    "peak_bytes",
    "release",
    "saved_bytes",
    "setup",
    "show_source",
    "trial",
    "verdict",
]
