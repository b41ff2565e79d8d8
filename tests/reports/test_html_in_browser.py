"""The HTML report as people meet it: a real browser, light and dark, wide and narrow, under the pointer, on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, find_browser, open_browser
from command import run_nanprobe
from reports.pages import HOSTILE, NAMES, hostile, large, page_of, render

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_browser() is None, reason="no chromium on this machine; make test-browser installs it"),
]

SIZES = {"wide": (1400, 900), "narrow": (400, 800)}
TEXT = [
    ".lead",
    ".details",
    "h2",
    ".badge",
    "summary small",
    "figcaption",
    "dt",
    "thead th",
    ".legend li",
    "code",
    "pre",
]

# An activation overflows FP16 in the second step.
OVERFLOWING = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(8):
    x = torch.randn(4, 8) * (1 if step < 3 else 300)
    with torch.autocast("cpu", dtype=torch.float16):
        h = model(x)
        loss = (h * h).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every page there is, on disk."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {name: page_of(name) for name in NAMES}
    texts |= {"hostile": render(*hostile(HOSTILE * 3)), "large": render(large(300, 50)), "long": render(large(3, 2000))}
    (folder / "train.py").write_text(OVERFLOWING)
    run = run_nanprobe("diagnose", "train.py", "--steps", "8", "--format", "html", cwd=folder)
    assert run.code == 1, run.both
    texts["real"] = run.stdout
    paths = {}
    for name, text in texts.items():
        paths[name] = folder / f"{name.replace(' ', '-')}.html"
        paths[name].write_text(text, encoding="utf-8")
    return paths


def everything() -> list[str]:
    return [*NAMES, "hostile", "large", "long", "real"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", everything())
def test_a_page_opens_from_disk_without_a_complaint(
    name: str, size: str, scheme: str, browser: Browser, pages: dict[str, Path]
) -> None:
    width, height = SIZES[size]
    browser.open(pages[name], width, height, dark=scheme == "dark")
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert [url for url in browser.requests if url.startswith("file:")] == [pages[name].as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
    assert "nanprobe" in browser.evaluate("document.body.innerText")
    assert browser.evaluate("window.hurt") is None
    assert len(browser.screenshot()) > 10_000


def test_the_page_of_a_real_run_tells_the_whole_story(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["real"])
    text = browser.evaluate("document.body.innerText")
    for told in ("OVERFLOW", "train.py:13", "loss = (h * h).mean()", "From origin to symptom", "Headroom", "Exponents"):
        assert told.casefold() in text.casefold(), told
    assert browser.evaluate("document.querySelectorAll('.chain > li').length") >= 2
    assert browser.evaluate("[...document.images].every(image => image.naturalWidth > 0)")


@pytest.mark.parametrize("name", ["large", "real", "sweep transformer"])
def test_the_pointer_finds_numbers(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[name])
    told = []
    for k in range(browser.evaluate(f"{OPEN}.length")):
        left, top, width, height = browser.evaluate(f"{BOX}({OPEN}[{k}])")
        browser.hover(left + width * 0.3, max(top, 0) + min(height, 500) * 0.4)
        told.append(browser.evaluate("document.getElementById('tip').innerText"))
        left, top, width, height = browser.evaluate(f"{BOX}(document.getElementById('tip'))")
        assert left >= 0 and top >= 0 and 0 < left + width <= 1400 and 0 < top + height <= 900
    assert told and all(re.search(r"\d", text) for text in told), told
    browser.hover(2, 2)
    assert browser.evaluate("getComputedStyle(document.getElementById('tip')).display") == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["overflow", "inconclusive", "healthy", "sweep conflicting"])
def test_text_stands_out_from_what_is_behind_it(
    name: str, scheme: str, browser: Browser, pages: dict[str, Path]
) -> None:
    """Source: WCAG 2.2, success criterion 1.4.3: 4.5 to 1 for text."""
    browser.open(pages[name], dark=scheme == "dark")
    for selector in TEXT:
        pair = browser.evaluate(COLOURS % selector)
        if pair is not None:
            assert contrast(*pair) >= 4.5, (selector, pair)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.1) == (scheme == "dark")


def test_it_prints(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["real"])
    printed = browser.pdf()
    assert printed.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", printed)) >= 2


def test_it_says_everything_without_scripts(browser: Browser, pages: dict[str, Path]) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["real"])
        found = browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        images = browser.call("DOM.querySelectorAll", nodeId=found, selector="img, svg[role=img]")["nodeIds"]
        assert len(images) > 5 and len(browser.screenshot(whole=True)) > 50_000
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_details_open_with_the_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["overflow"])
    browser.evaluate("document.querySelector('#findings summary').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    assert browser.evaluate("document.querySelector('#findings details').open")


# The pictures that can be seen, and where something stands in the window.
OPEN = "[...document.querySelectorAll('[data-hover]')].filter(area => !area.closest('details:not([open])'))"
BOX = """(element => {
  if (element.id !== 'tip') element.scrollIntoView({block: 'center'});
  const box = element.getBoundingClientRect();
  return [box.left, box.top, box.width, box.height];
})"""

# The colour of the first element of a kind and of what is behind it.
COLOURS = """(() => {
  const element = document.querySelector('%s');
  if (!element) return null;
  let behind = element;
  while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
  return [getComputedStyle(element).color, getComputedStyle(behind || document.body).backgroundColor];
})()"""


def luminance(colour: str) -> float:
    """Source: WCAG 2.2, relative luminance."""
    parts: list[Any] = re.findall(r"[\d.]+", colour)[:3]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (float(p) / 255 for p in parts)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
