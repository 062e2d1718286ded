"""What sections are made of: HTML text, tables, notes. Everything that comes from a user is escaped here."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """One part of the page. ``body`` is HTML; ``id`` is the anchor that the table of contents leads to."""

    id: str
    title: str
    body: str


def esc(text: object) -> str:
    """The text as HTML shows it literally, also inside a quoted attribute."""
    return html.escape(str(text), quote=True)


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{esc(text)}</p>"


def note(text: str) -> str:
    """A remark in smaller type: how to read what stands beside it."""
    return f'<p class="note">{esc(text)}</p>'


def bullets(lines: Iterable[str]) -> str:
    """A list of plain sentences."""
    return "<ul>" + "".join(f"<li>{tied(line)}</li>" for line in lines) + "</ul>"


def tied(line: str) -> str:
    """A plain sentence as HTML, in which a number stays on one line with its unit and its deviation."""
    return esc(line).replace(" %", "\N{NO-BREAK SPACE}%").replace(" ± ", "\N{NO-BREAK SPACE}± ")


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], text_columns: Sequence[int] = (0,)
) -> str:
    """A table that scrolls inside its box; the first cell of each row is its heading.

    All columns are numbers, set flush right, except ``text_columns``.
    """

    def kind(column: int) -> str:
        return ' class="text"' if column in text_columns else ""

    heads = "".join(f'<th scope="col"{kind(i)}>{esc(name)}</th>' for i, name in enumerate(head))
    body = []
    for row in rows:
        first, *rest = row
        cells = "".join(f"<td{kind(i)}>{_cell(value, i, text_columns)}</td>" for i, value in enumerate(rest, 1))
        body.append(f'<tr><th scope="row"{kind(0)}><span>{esc(first)}</span></th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table>'
        f"<caption><span>{esc(caption)}</span></caption><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(value: object, column: int, text_columns: Sequence[int]) -> str:
    text = esc(value)
    if column not in text_columns:
        # A real minus sign in numbers; the hyphen alone stands for "no number".
        text = text.replace("-", "\N{MINUS SIGN}") if len(text) > 1 else text
    return text


def code(text: str, label: str) -> str:
    """Text as it stands in a file, in a box that scrolls."""
    return f'<pre class="scroll" tabindex="0" role="region" aria-label="{esc(label)}"><code>{esc(text)}</code></pre>'


def folded(title: str, body: str) -> str:
    """HTML that opens on demand."""
    return f"<details><summary>{esc(title)}</summary>{body}</details>"
