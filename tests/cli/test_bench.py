"""``glassformer bench``: two ways to the same result take turns; no time is asserted."""

import json
import re

import pytest
import torch
from glassformer.cli import bench
from support.commands import one_clean_line, run


@pytest.fixture
def quick(monkeypatch):
    """The same jobs at sizes of a test."""
    sizes = {**bench.SIZES, "vocab_size": 2048, "d_model": 8, "n_heads": 2, "n_layers": 1}
    monkeypatch.setattr(bench, "SIZES", sizes)


def test_every_job_has_two_ways_and_a_ratio(quick):
    before = torch.get_rng_state()
    found = json.loads(run("bench", "--rounds", 1, "--device", "cpu", "--json").stdout)
    assert torch.equal(torch.get_rng_state(), before)
    assert (found["device"], found["threads"]) == ("cpu", torch.get_num_threads())
    names = [[way["name"] for way in job["ways"]] for job in found["jobs"]]
    assert names == [
        ["padded", "packed"],
        ["no cache", "cache"],
        ["growing", "static"],
        ["model", "prepared"],
        ["eager", "fused"],
    ]
    for job in found["jobs"]:
        assert job["ratio"] > 0
        assert all(way["seconds"] > 0 for way in job["ways"])
    rows = run("bench", "--rounds", 1).stdout.splitlines()
    assert len(rows) == 6
    assert all(re.search(r"\d+\.\d ms +\D+ \d+\.\d ms +\d+\.\d\dx$", row) for row in rows[1:])


@pytest.mark.usefixtures("no_shape_checks")
def test_both_ways_give_the_same_result(monkeypatch):
    """Else the ratio would compare two different things."""
    device = torch.device("cpu")
    written = []
    real = bench.generate

    def generate(*arguments, **options):
        written.append(real(*arguments, **options).tokens)

    monkeypatch.setattr(bench, "generate", generate)
    for make in (bench._writing, bench._caching, bench._preparing):
        torch.manual_seed(0)
        for way in make(device).values():
            way()
            way()  # a cache that is used again begins anew
    assert len(written) == 12
    assert all(torch.equal(tokens, written[0]) for tokens in written)
    grad, last = torch.autograd.grad, []

    def remembered(*arguments):
        last[:] = grad(*arguments)
        return tuple(last)

    monkeypatch.setattr(torch.autograd, "grad", remembered)
    for make in (bench._training, bench._attending):
        gradients = []
        for way in make(device).values():
            way()
            gradients.append(list(last))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_bench_needs_a_round(quick):
    assert "--rounds 0 must be at least 1" in one_clean_line(run("bench", "--rounds", 0, code=2))
