"""Take turns, take medians, and know the limits of the machine."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class System:
    """One way to do a job. The first of a table is what the others are compared with."""

    name: str
    run: Callable[[], Any]
    """Does the job once and returns what all systems must agree on, or None."""
    cost: float | None = None
    """What one run takes at the least of the table's limit: operations, or bytes read."""


@dataclass(frozen=True)
class Row:
    """What was measured of one system."""

    name: str
    seconds: float
    """Median of one run."""
    rate: float
    """Work per second."""
    ratio: float
    """How many times as fast as the first system: the median over the rounds."""
    share: float | None
    """Of the machine's limit."""
    spread: float
    """Slowest run over fastest run."""
    difference: float | None
    """Between the first result and that of the first system, relative to its size."""


@dataclass(frozen=True)
class Table:
    """One job."""

    job: str
    unit: str
    limit: str
    rows: list[Row]

    def __str__(self) -> str:
        head = ["", self.unit, f"x {self.rows[0].name}", f"of {self.limit}", "spread", "differs by"]
        lines = [head, *(self._cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join([self.job, "-" * len(text[0]), *text])

    @staticmethod
    def _cells(row: Row) -> list[str]:
        return [
            row.name,
            f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.3g}",
            f"{row.ratio:.2f}",
            "" if row.share is None else f"{row.share:.0%}",
            f"{row.spread:.2f}",
            "" if row.difference is None else f"{row.difference:.0e}",
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    job: str,
    systems: Sequence[System],
    *,
    work: float,
    unit: str = "tokens/s",
    rounds: int,
    limit: tuple[str, float] = ("", 0.0),
) -> Table:
    """Time the systems in turn. ``work`` is what one run does, ``limit`` the machine's rate."""
    results = [system.run() for system in systems]  # also warms up
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    for turn in range(rounds):
        for system in systems if turn % 2 == 0 else systems[::-1]:
            start = _clock()
            system.run()
            seconds[system.name].append(_clock() - start)
    first = seconds[systems[0].name]
    rows = []
    for system, result in zip(systems, results, strict=True):
        own = seconds[system.name]
        median = statistics.median(own)
        share = system.cost / median / limit[1] if system.cost and limit[1] else None
        rows.append(
            Row(
                name=system.name,
                seconds=median,
                rate=work / median,
                ratio=statistics.median(a / b for a, b in zip(first, own, strict=True)),
                share=share,
                spread=max(own) / min(own),
                difference=_difference(result, results[0]),
            )
        )
    return Table(job, unit, limit[0], rows)


def gemm_rate() -> tuple[str, float]:
    """Operations per second of the fastest float32 matrix product of a few sizes."""
    best = 0.0
    for m, k, n in ((2048, 256, 1024), (2048, 1024, 1024), (1024, 2048, 2048)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        best = max(best, 2 * m * k * n / _fastest(lambda a=a, b=b: a @ b))
    return "GEMM rate", best


def read_rate() -> tuple[str, float]:
    """Bytes per second of the sum over an array that fits no cache."""
    x = torch.ones(1 << 26)
    return "bandwidth", x.numel() * 4 / _fastest(x.sum)


def _fastest(run: Callable[[], Any], times: int = 7) -> float:
    seconds = []
    for _ in range(times + 1):
        start = _clock()
        run()
        seconds.append(_clock() - start)
    return min(seconds[1:])


def _clock() -> float:
    """Of this process where it runs on one thread: what others do then disturbs less."""
    if torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def _difference(result: Any, wanted: Any) -> float | None:
    if result is None or wanted is None:
        return None
    one, other = (torch.as_tensor(x) for x in (result, wanted))
    if not one.is_floating_point():
        return float((one != other).float().mean())
    return float((one - other).abs().max() / other.abs().max())
