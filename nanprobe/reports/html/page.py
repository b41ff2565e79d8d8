"""The page around the parts: head, style, script, navigation. One file; its own policy forbids it any load."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from nanprobe.reports.html.markup import Child, Markup, element, join


def page(title: str, heading: Sequence[Child], sections: Sequence[Markup], closing: Sequence[Child]) -> str:
    """The whole document, ending in a newline. Sections that are empty are left out; the others are in the menu."""
    shown = [part for part in sections if part]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="nanprobe"),
        element("title", title),
        element("style", Markup(read_part("page.css"))),
    )
    body = element(
        "body",
        element("a", "Skip to the answer", href="#main", class_="skip"),
        element("header", element("div", *heading), _menu(shown)),
        element("main", *shown, id="main"),
        element("footer", *closing) if closing else None,
        element("script", Markup(read_part("page.js"))),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def masthead(command: str, target: str, details: Sequence[str]) -> list[Markup]:
    """What was done, to what, on what."""
    name = element("p", element("b", "nanprobe"), f" {command} ", element("code", target), class_="what")
    return [name, element("p", join(details, " · "), class_="details")]


def _menu(sections: Sequence[Markup]) -> Markup | None:
    """Links to the sections, by their headings."""
    found = [match for part in sections for match in [re.search(r'<h2 id="(\w+)-title">([^<]+)</h2>', part)] if match]
    links = [element("li", element("a", Markup(match[2]), href=f"#{match[1]}")) for match in found]
    return element("nav", element("ul", *links), aria_label="Sections") if links else None


def _policy() -> str:
    """No address may be loaded, and no script run but ours. Source: Content Security Policy Level 3 (W3C)."""
    digest = base64.b64encode(hashlib.sha256(read_part("page.js").encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )


@cache
def read_part(name: str) -> str:
    """A file of this package that goes into every page."""
    return resources.files("nanprobe.reports.html").joinpath(name).read_text(encoding="utf-8")
