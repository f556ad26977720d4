"""What a learner reads after a check: which property failed, and on what."""

import html
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Report"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a check. Equal outcomes print equally on every machine."""

    exercise: str
    passed: bool
    property: str = ""
    fed: str = ""
    expected: str = ""
    got: str = ""
    hint: str = ""

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return "\n".join(
            [self._headline(), *(f"  {label}: {text}" for label, text in self._lines())]
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._html()}

    def _headline(self) -> str:
        if self.passed:
            return f"✓ {self.exercise}: passed"
        return f"✗ {self.exercise}: not yet, {stable(self.property)}"

    def _lines(self) -> list[tuple[str, str]]:
        parts = {"fed": self.fed, "expected": self.expected, "got": self.got, "hint": self.hint}
        return [(label, stable(text)) for label, text in parts.items() if text and not self.passed]

    def _html(self) -> str:
        colour = "#009e73" if self.passed else "#d55e00"
        rows = "".join(
            f'<div style="margin:.3em 0 0"><span style="opacity:.75">{label}:</span> '
            f'<span style="white-space:pre-wrap">{html.escape(text)}</span></div>'
            for label, text in self._lines()
        )
        return (
            '<div class="glassformer-card" role="group" '
            f'aria-label="Check of {html.escape(self.exercise)}" '
            f'style="border-left:.4em solid {colour};padding:.3em 0 .5em 1em;margin:.8em 0;'
            "max-width:44rem;background:transparent;color:inherit;line-height:1.45;"
            'overflow-wrap:anywhere;text-align:left">'
            f'<div style="font-weight:bold">{html.escape(self._headline())}</div>{rows}</div>'
        )


def stable(text: str) -> str:
    """Text without what changes from run to run: addresses and folders."""
    text = re.sub(r"\bat 0x[0-9a-fA-F]+", "somewhere in memory", text)
    text = re.sub(r"0x[0-9a-fA-F]{6,}", "(an address)", text)
    return re.sub(r"(?<![\w.])/(?:[\w.@+-]+/)+([\w.@+-]+)", r"\1", text)
