"""GitHub's Markdown, written so that no name or line of the user's code can be taken for it.

Source: GitHub Flavored Markdown Spec 0.29. An entity ("&#124;") is text wherever it stands, even in a table's cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nanprobe.reports.plain_text import clean, shorten_end

LONGEST = 1000  # characters of one text from the user, before they are escaped
_ENTITIES = {character: f"&#{ord(character)};" for character in "&<>|"}
_SPECIAL = re.compile(
    r"(?P<entity>[&<>|])"
    r"|(?P<reference>[@#](?=\w))"  # GitHub makes people and issues of them
    r"|(?P<mark>[\\`*\[\]#~$]|(?<![^\W_])_|_(?![^\W_])|^[-+=](?=\s)|(?<=^\d)[.)](?=\s))"
)
_PLAIN_CODE = re.compile(r"[^`|\\]+")


def escape(text: str, limit: int = LONGEST) -> str:
    """Text on one line that is shown as it is, in a paragraph, a list or a table; it mentions and refers to nobody."""
    return _SPECIAL.sub(_escape_one, _cut(text, limit).strip())


def prose(text: str, limit: int = LONGEST) -> str:
    """A sentence of nanprobe's own, with code between backticks and the user's names anywhere in it."""
    parts = _cut(text, limit).split("`")
    if len(parts) % 2 == 0:  # a backtick without a partner is a character like others
        parts[-2:] = ["`".join(parts[-2:])]
    return "".join(code(part) if number % 2 else _SPECIAL.sub(_escape_one, part) for number, part in enumerate(parts))


def code(text: str, limit: int = LONGEST) -> str:
    """A name, number or line of code on one line, in a fixed-width font; nothing for an empty text."""
    text = _cut(text, limit).strip()
    if not text:
        return ""
    if _PLAIN_CODE.fullmatch(text):
        return f"`{text}`"
    # A pipe would end a table's cell and a backtick the span; as entities they are only characters.
    return f"<code>{''.join(_as_entity(character) for character in text)}</code>"


def fence(lines: Sequence[str], language: str = "") -> str:
    """A block of code with a fence longer than any run of backticks in it."""
    text = "\n".join(clean(line).rstrip() for line in lines)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"


def row(cells: Sequence[str]) -> str:
    """One line of a table; the cells are Markdown already."""
    return f"| {' | '.join(cells)} |"


def head(titles: Sequence[str], right: Sequence[str] = ()) -> str:
    """The two lines above a table; the titles in `right` have their cells at the right edge."""
    return row(titles) + "\n" + row(["---:" if title in right else "---" for title in titles])


def _cut(text: str, limit: int) -> str:
    """One line of at most `limit` characters; a text of megabytes is not looked at to its end."""
    return shorten_end(clean(text[: 2 * limit]), limit)


def _escape_one(found: re.Match[str]) -> str:
    if found["entity"]:
        return _ENTITIES[found[0]]
    if found["reference"]:
        return ("\\#" if found[0] == "#" else "@") + "<!-- -->"
    return "\\" + found[0]


def _as_entity(character: str) -> str:
    return character if character.isalnum() or character == " " else f"&#{ord(character)};"
