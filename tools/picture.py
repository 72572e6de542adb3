"""Draws the picture of the README: a change on its way from its source to its subscribers.

`python -m tools.picture` writes `docs/images/picture-light.svg` and `-dark.svg`. Both are the same
drawing with other colours, since a page chooses between them by the reader's theme.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH: Final = 1000
HEIGHT: Final = 372
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO: Final = "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of one drawing, as SVG writes them."""

    text: str
    faint: str
    line: str
    box: str
    inner: str
    live: str
    resync: str
    mark: str


LIGHT: Final = Theme(
    text="#1f2328",
    faint="#59636e",
    line="#8c959f",
    box="#f6f8fa",
    inner="#ffffff",
    live="#1a7f37",
    resync="#bc4c00",
    mark="#0969da",
)
DARK: Final = Theme(
    text="#f0f6fc",
    faint="#9198a1",
    line="#656c76",
    box="#161b22",
    inner="#0d1117",
    live="#3fb950",
    resync="#f0883e",
    mark="#58a6ff",
)


@dataclass(slots=True)
class Drawing:
    """Collects the elements of an SVG file, in the order in which they are painted."""

    theme: Theme
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, fill: str = "") -> None:
        """Paint a rectangle with round corners."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" '
            f'fill="{fill or self.theme.box}" stroke="{self.theme.line}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        colour: str = "",
        weight: int = 400,
        anchor: str = "middle",
        mono: bool = False,
    ) -> None:
        """Write a line of text; `y` is its base line."""
        family = f' font-family="{_MONO}"' if mono else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
            f'fill="{colour or self.theme.text}"{family}>{escape(words)}</text>'
        )

    def arrow(self, path: str, colour: str = "", *, dashed: bool = False) -> None:
        """Draw a path with a head at its end."""
        colour = colour or self.theme.line
        dashes = ' stroke-dasharray="6 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes} '
            f'marker-end="url(#{_head(colour)})"/>'
        )

    def svg(self) -> str:
        """Return the file."""
        theme = self.theme
        heads = "".join(
            f'<marker id="{_head(colour)}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" '
            f'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">'
            f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
            for colour in (theme.line, theme.live, theme.resync)
        )
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="{_FONT}" role="img">\n'
            "<title>Sources feed a Spark pipeline, which writes a log; the engine carries its "
            "changes to every subscriber</title>\n"
            f"<defs>{heads}</defs>\n{body}\n</svg>\n"
        )


def _head(colour: str) -> str:
    return f"head-{colour.removeprefix('#')}"


def draw(theme: Theme) -> str:
    """Return the picture in these colours."""
    d = Drawing(theme)
    _sources(d)
    _spark(d)
    _log(d)
    _engine(d)
    _subscribers(d)
    return d.svg()


_TOP: Final = 44
_TALL: Final = 276
_FOOT: Final = _TOP + _TALL + 28


def _column(d: Drawing, x: float, width: float, title: str, foot: str) -> None:
    d.text(x + width / 2, _TOP - 16, title, size=16, weight=600)
    d.text(x + width / 2, _FOOT, foot, size=12.5, colour=d.theme.faint)


def _sources(d: Drawing) -> None:
    x, width = 10, 150
    _column(d, x, width, "Sources", "files, streams, programs")
    names = ("Debezium files", "CDCv2 streams", "Spark DataFrames", "Python programs")
    for row, name in enumerate(names):
        y = _TOP + 10 + row * 68
        d.box(x, y, width, 50, d.theme.box)
        d.text(x + width / 2, y + 30, name)
        if name == "Python programs":
            d.arrow(f"M{x + width},{y + 25} H392")  # They write the log themselves.
        else:
            d.arrow(f"M{x + width},{y + 25} C{x + 180},{y + 25} {x + 166},152 {x + 190},152")


def _spark(d: Drawing) -> None:
    x, width = 204, 150
    _column(d, x, width, "Spark pipeline", "writes exactly once")
    d.box(x, _TOP, width, 218)
    steps = (
        ("decode", "images stay as bytes"),
        ("group", "by transaction"),
        ("consolidate", "one effect a row"),
        ("order", "as the source did"),
    )
    for row, (name, what) in enumerate(steps):
        y = _TOP + 10 + row * 50.5
        d.box(x + 12, y, width - 24, 44, d.theme.inner)
        d.text(x + width / 2, y + 18, name, weight=600)
        d.text(x + width / 2, y + 34, what, size=11, colour=d.theme.faint)
    d.arrow(f"M{x + width},152 H{x + width + 38}")


def _log(d: Drawing) -> None:
    x, width = 398, 166
    _column(d, x, width, "Log", "immutable Arrow files")
    d.box(x, _TOP, width, _TALL)
    versions = ("1209", "1208", "1207", "1206", "1205", "1204")
    for row, version in enumerate(versions):
        y = _TOP + 14 + row * 43
        published = row >= 2
        d.parts.append(f'<g opacity="{1 if published else 0.55}">')
        d.box(x + 12, y, width - 24, 32, d.theme.inner)
        d.text(x + 24, y + 21, version, anchor="start", mono=True)
        d.text(
            x + width - 24,
            y + 21,
            "published" if published else "committed",
            size=11.5,
            anchor="end",
            colour=d.theme.mark if published else d.theme.faint,
        )
        d.parts.append("</g>")
    mark = _TOP + 14 + 2 * 43 - 5.5
    d.parts.append(
        f'<path d="M{x + 4},{mark} H{x + width - 4}" stroke="{d.theme.mark}" stroke-width="2"/>'
    )
    d.arrow(f"M{x + width},126 H{x + width + 38}", d.theme.live)
    d.arrow(f"M{x + width},276 H{x + width + 38}", d.theme.resync, dashed=True)


def _engine(d: Drawing) -> None:
    x, width = 608, 200
    _column(d, x, width, "Engine", "gRPC · GraphQL · REST")
    d.box(x, _TOP, width, _TALL)
    d.box(x + 12, 60, width - 24, 134, d.theme.inner)
    d.text(x + width / 2, 84, "live", weight=600, colour=d.theme.live)
    d.text(x + width / 2, 103, "one pass over each batch", size=11.5, colour=d.theme.faint)
    d.text(x + width / 2, 119, "finds the rows of all criteria", size=11.5, colour=d.theme.faint)
    for row, fill in enumerate((8, 5, 7)):
        for cell in range(8):
            taken = cell < fill
            d.parts.append(
                f'<rect x="{x + 40 + cell * 15.5}" y="{132 + row * 19}" width="12" height="12" rx="2" '
                f'fill="{d.theme.live if taken else "none"}" stroke="{d.theme.live}" '
                f'opacity="{0.85 if taken else 0.45}"/>'
            )
    d.box(x + 12, 216, width - 24, 88, d.theme.inner)
    d.text(x + width / 2, 239, "resync", weight=600, colour=d.theme.resync)
    for row, words in enumerate(
        ("whoever falls behind", "reads on from the log,", "then is live again")
    ):
        d.text(x + width / 2, 258 + row * 16, words, size=11.5, colour=d.theme.faint)
    d.parts.append(
        f'<path d="M{x + width / 2},214 V198" fill="none" stroke="{d.theme.resync}" stroke-width="2" '
        f'stroke-dasharray="4 3" marker-end="url(#{_head(d.theme.resync)})"/>'
    )


def _subscribers(d: Drawing) -> None:
    x, width = 854, 136
    _column(d, x, width, "Subscribers", "each at its own pace")
    wishes = (
        ("a page", "orders, UPSERT"),
        ("a service", "key 4711"),
        ("another job", "everything"),
        ("a slow one", "holds up nobody"),
    )
    for row, (name, wish) in enumerate(wishes):
        y = _TOP + 6 + row * 68
        d.box(x, y, width, 56, d.theme.box)
        d.text(x + width / 2, y + 24, name, weight=600)
        d.text(x + width / 2, y + 43, wish, size=11.5, colour=d.theme.faint)
        middle = y + 28
        if row < 3:
            start = 140
            d.arrow(
                f"M808,{start} C832,{start} 826,{middle} {x - 4},{middle}",
                d.theme.live,
            )
        else:
            d.arrow(f"M808,276 C832,276 830,{middle} {x - 4},{middle}", d.theme.resync, dashed=True)


def main() -> None:
    """Write both drawings."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, theme in (("light", LIGHT), ("dark", DARK)):
        (IMAGES / f"picture-{name}.svg").write_text(draw(theme))


if __name__ == "__main__":
    main()
