"""A picture: SVG of its own with a title, a description for who cannot see it, and its numbers as a table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from tessera.simulator.report.markup import Markup, joined, tag

WIDTH: Final = 460
"""Units of a picture's width; with text of 13 units it can be read on a telephone and fills half a screen."""

COLOURS: Final = 8
"""Colours (and dashes) that tell series apart. Source: Okabe and Ito's palette, made for the colour-blind."""


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers as text: a header and rows as long; the first cell of a row names it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """``name`` is that of its files; ``note`` says below the picture how to read it."""

    name: str
    title: str
    description: str
    height: float
    body: Markup
    table: Table
    note: str = ""
    width: float = WIDTH


def inline(picture: Picture) -> Markup:
    """The picture as an element of a page, whose style sheet colours it."""
    return tag(
        "svg",
        tag("title", picture.title, id=f"{picture.name}-title"),
        tag("desc", picture.description, id=f"{picture.name}-description"),
        picture.body,
        role="img",
        aria_labelledby=f"{picture.name}-title {picture.name}-description",
        viewBox=f"0 0 {picture.width:g} {picture.height:g}",
    )


def style_sheet(name: str) -> str:
    """A style sheet of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def alone(picture: Picture) -> str:
    """The picture as a file of its own, with its title above it, in the light colours.

    The colours stand where the style sheet names variables: not every program that draws SVG knows those.
    """
    colours = dict(re.findall(r"(--[\w-]+): (#\w+);", style_sheet("colours.css").split("@media")[0]))
    style = re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], style_sheet("picture.css"))
    head = 26
    return tag(
        "svg",
        tag("title", picture.title),
        tag("style", Markup(style)),
        tag("rect", width=picture.width, height=picture.height + head, class_="paper"),
        tag("text", picture.title, x=8, y=18, class_="head"),
        tag("g", picture.body, transform=f"translate(0 {head})"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {picture.width:g} {picture.height + head:g}",
        width=picture.width * 2,
        height=(picture.height + head) * 2,
    )


def text(content: str, x: float, y: float, style: str = "") -> Markup:
    """A piece of text; ``style`` is one or more classes."""
    return tag("text", content, x=x, y=y, class_=style or None)


def legend(names: Sequence[str], styles: Sequence[str], x: float, y: float) -> tuple[Markup, float]:
    """Squares with names in as many lines as they need, and how high that is."""
    parts: list[str] = []
    across, down = x, y
    for name, style in zip(names, styles, strict=True):
        wide = 26 + 7.8 * len(name)
        if across + wide > WIDTH and across > x:
            across, down = x, down + 18
        parts += [
            tag("rect", x=across, y=down, width=11, height=11, class_=style),
            text(name, across + 16, down + 10),
        ]
        across += wide
    return joined(parts), down - y + 18
