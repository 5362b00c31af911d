"""Write a report beside the files that it is made from: ``report.html``, and the pictures as SVG and PNG."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tessera.core.errors import UnavailableError
from tessera.runtime.state import temporary_for
from tessera.simulator.files import write
from tessera.simulator.report.markup import Markup
from tessera.simulator.report.page import page
from tessera.simulator.report.picture import Picture, Table, alone
from tessera.simulator.report.pictures import pictures_of
from tessera.simulator.report.source import read_results

PAGE: Final = "report.html"
PICTURES: Final = "pictures"

Draw = Callable[[str], bytes]
"""SVG in, PNG out."""


def write_report(folder: Path) -> Path:
    """The page of the simulation in ``folder``, written there; returns where.

    Raises:
        UnavailableError: the simulation's files are not there, or the page cannot be written.
    """
    path = folder / PAGE
    write(path, page(read_results(folder)))
    return path


def write_pictures(folder: Path, draw: Draw) -> Sequence[Path]:
    """Every picture of the page as SVG and as PNG (twice the size of the page's); returns where.

    Raises:
        UnavailableError: the simulation's files are not there, or a picture cannot be written.
    """
    found: list[Path] = []
    for picture in pictures_of(read_results(folder)):
        vector = alone(picture)
        path = folder / PICTURES / f"{picture.name}.svg"
        write(path, vector)
        found += [path, _bitmap(path.with_suffix(".png"), picture, draw(vector))]
    return found


def _bitmap(path: Path, picture: Picture, content: bytes) -> Path:
    try:
        temporary = temporary_for(path)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        why = f"cannot write {path} ({picture.title}): {error.strerror}"
        raise UnavailableError(why, "name another folder with --out") from error
    return path


def drawer() -> Draw:
    """What turns SVG into PNG. The library is an extra: 1.4 MB that only this needs.

    Raises:
        UnavailableError: the library is not installed, or the machine has no font that the pictures name.
    """
    try:
        library: Any = import_module("resvg_py")
    except ImportError as error:
        remedy = "install it with `pip install 'tessera[pictures]'`, or look at the page, which needs nothing"
        raise UnavailableError("drawing PNG needs the library resvg-py", remedy) from error

    def draw(vector: str) -> bytes:
        return bytes(library.svg_to_bytes(svg_string=vector))

    # Without a font that the style sheet names, the library leaves text out in silence.
    with_letter, without = (
        alone(Picture("probe", "", "", 20, Markup(f"<text y='16'>{letter}</text>"), Table((), ())))
        for letter in ("M", "")
    )
    if draw(with_letter) == draw(without):
        remedy = (
            "install DejaVu Sans, Liberation Sans or Noto Sans (Debian, Ubuntu: apt-get install fonts-dejavu-core)"
        )
        raise UnavailableError(
            "drawing PNG needs a font, and this machine has none of those that the pictures use", remedy
        )
    return draw
