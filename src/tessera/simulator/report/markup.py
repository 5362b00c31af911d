"""Elements of HTML and SVG as text: a :class:`Markup` is taken as it is, everything else is escaped."""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """One element. In names of attributes a last underscore goes, others are dashes; ``None`` is left out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{said}>{joined(children)}</{name}>" if children else f"<{name}{said}/>")


def joined(parts: Iterable[str]) -> Markup:
    """All of these, one after another."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part, quote=False) for part in parts))
