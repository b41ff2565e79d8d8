"""HTML and SVG as text that is safe by construction: every string is escaped unless it is `Markup` already.

Names come from the user's code and may hold anything, `</script>` and lone surrogates among it.
"""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Iterable

_VOID = frozenset({"meta", "img", "br", "hr", "col", "link", "input"})
_BIDI = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Markup(str):
    """Text that is HTML already, and goes into the page as it is."""

    __slots__ = ()


Child = str | None  # text, which is escaped, or Markup; None is nothing


def text(value: str) -> Markup:
    """Any string as HTML text, also safe inside a quoted attribute; characters that no page may hold become "�"."""
    return Markup(html.escape("".join(map(_visible, value)), quote=True))


def element(tag: str, *children: Child, **attributes: object) -> Markup:
    """`<tag attributes>children</tag>`. None and False leave an attribute out, True writes its bare name.

    Underscores become hyphens (`aria_label`), one at the end is dropped (`class_`).
    """
    opening = f"<{tag}{''.join(map(_attribute, attributes.items()))}>"
    if tag in _VOID:
        return Markup(opening)
    return Markup(f"{opening}{join(children)}</{tag}>")


def join(children: Iterable[Child], between: str = "") -> Markup:
    """The children one after the other, strings escaped; `between` is markup."""
    return Markup(between.join(as_markup(child) for child in children if child is not None))


def as_markup(child: str) -> Markup:
    """The child itself when it is markup, else its escaped text."""
    return child if isinstance(child, Markup) else text(child)


def embed_json(value: object) -> Markup:
    """Plain data as JSON that can stand inside a script element, whatever its strings hold."""
    plain = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return Markup(plain)


def _attribute(item: tuple[str, object]) -> str:
    name, value = item[0].rstrip("_").replace("_", "-"), item[1]
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def _visible(character: str) -> str:
    if character in "\n\t" or (character.isprintable() and character not in _BIDI):
        return character
    return "�" if character in _BIDI or unicodedata.category(character) in ("Cc", "Cs", "Cn", "Co") else character
