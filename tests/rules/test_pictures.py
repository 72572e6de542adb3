"""The pictures are those that their scripts draw."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tools.picture import DARK, IMAGES, LIGHT, Theme, draw
from tools.recording import moments, picture, screens

UP = "\r\x1b[2K\x1b[1A\x1b[2K"


@pytest.mark.parametrize(("name", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_the_picture_of_the_readme_is_the_one_that_is_drawn(name: str, theme: Theme) -> None:
    assert (IMAGES / f"picture-{name}.svg").read_text() == draw(theme)


def test_a_panel_is_drawn_over_the_one_before() -> None:
    written = f"one\r\n---\r\npanel 1{UP}two\r\n---\r\npanel 2"
    assert screens(written) == [["one", "---", "panel 1"], ["one", "two", "---", "panel 2"]]


def test_the_moments_are_the_first_return_and_the_verdict() -> None:
    panel = "".join(f"\r\npanel {row}" for row in range(10))
    back = f"slow │ ── live again{panel}\r\nslow  10 received  live"
    erased = UP + "\x1b[1A\x1b[2K" * 10
    verdict = "".join(f"{row}\r\n" for row in range(20))
    shown, last = moments(f"{back}{erased}{verdict}Script done on some day\n")
    assert shown[0] == "slow │ ── live again"
    assert shown[-1].endswith("live")
    assert last == [str(row) for row in range(9, 20)]


def test_the_picture_of_the_demo_needs_no_other_host() -> None:
    drawn = picture(["\x1b[32mgreen\x1b[0m", "x" * 200, "slow │ " + "y" * 200])
    ElementTree.fromstring(drawn)
    for text in (drawn, (IMAGES / "demo.svg").read_text()):
        assert "@font-face" not in text
        assert "url(http" not in text
