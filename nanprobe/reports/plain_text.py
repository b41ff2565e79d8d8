"""Text from the user's code and files, made fit for one line of a report."""

from __future__ import annotations


def clean(text: str) -> str:
    """The text on one line, without anything that could move the cursor or change colours."""
    text = " ".join(text.expandtabs(4).splitlines())
    return "".join(character if character.isprintable() else "�" for character in text)


def shorten_end(text: str, limit: int) -> str:
    """At most `limit` characters of a text, an ellipsis where it was cut."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
