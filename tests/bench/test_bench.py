"""The benchmarks run, their systems agree, and their figures mean what they say. No time is
asserted."""

import json

import pytest

pytest.importorskip("transformers")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("job", ["training", "reading", "decode", "beam", "memory"])
def test_all_systems_of_a_job_agree(bench, job, tmp_path, capsys):
    file = tmp_path / "results.json"
    assert bench("__main__").main(["--toy", "--json", str(file), job]) == 0
    results = json.loads(file.read_text())
    assert results["machine"]["threads"] == 1
    assert len(results["tables"]) >= 2
    printed = capsys.readouterr().out
    for table in results["tables"]:
        assert table["job"] in printed
        first, *others = table["rows"]
        assert (first["ratio"], first["difference"]) == (1.0, 0.0)
        assert any(row["name"].startswith("ours") for row in others)
        for row in others:
            assert row["rate"] > 0
            same = not row["name"].endswith("float16")  # those have other weights
            assert (row["difference"] is not None) == same
            assert not same or row["difference"] < 1e-5, (table["job"], row["name"])


def test_systems_take_turns_and_ratios_are_of_one_round(bench, monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(bench("measure"), "_clock", lambda: now[0])

    def system(name, seconds, result):
        times = iter([100.0, *seconds])  # the first call warms up

        def run():
            calls.append(name)
            now[0] += next(times)
            return result

        return bench("measure").System(name, run, cost=6.0)

    systems = [system("a", [2.0, 8.0, 4.0], [1.0, 2.0]), system("b", [1.0, 2.0, 4.0], [1.0, 2.5])]
    table = bench("measure").compare("job", systems, work=12, rounds=3, limit=("limit", 6.0))
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    first, second = table.rows
    assert (first.seconds, second.seconds) == (4.0, 2.0)
    assert (first.rate, second.rate) == (3.0, 6.0)
    assert second.ratio == 2.0  # the median of 2, 4 and 1
    assert (first.share, second.share) == (0.25, 0.5)
    assert second.spread == 4.0
    assert second.difference == 0.25  # relative to the largest number


def test_an_unknown_job_is_refused(bench, capsys):
    with pytest.raises(SystemExit):
        bench("__main__").main(["cooking"])
    assert "no job cooking" in capsys.readouterr().err
