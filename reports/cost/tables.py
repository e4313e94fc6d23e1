"""Training costs as tables: a paper's Tables 5 and 1 beside ours, and its Table 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.cost.cards import TERA, Book, checks, cost
from reports.text_table import Column, TextTable, markdown_lines

UNITS = {"T": 1e12, "B": 1e9, "M": 1e6, "K": 1e3}
COLUMNS = (
    Column("name", "method", rank=0),
    Column("paradigm", "paradigm", rank=7),
    Column("trained", "trained", rank=2),
    Column("frozen", "frozen", rank=2),
    Column("tokens", "tokens", rank=1),
    Column("batch", "batch", rank=8),
    Column("steps_printed", "steps, printed", rank=6),
    Column("steps", "steps, ours", rank=6),
    Column("tflop_printed", "TFLOP, printed", rank=3),
    Column("tflop", "TFLOP, ours", rank=3),
    Column("hours_1", "h, Table 1", rank=5),
    Column("hours_5", "h, Table 5", rank=1),
    Column("hours", "h, ours", rank=1),
    Column("follows", "follows", rank=1),
)


def rows(book: Book, utilisation: float) -> list[dict[str, Any]]:
    """A row a card: numbers, None where there is none, and `flags`: what its own formula does not give.

    Args:
        utilisation: U of our hours; printed ones are checked against the book's.
    """
    out = []
    for key, card in book.cards.items():
        ours, flags = cost(card, utilisation), list(checks(card, book.utilisation))
        found = {where: {k: float(v) for k, v in values.items()} for where, values in card.printed.items()}
        table, first = found.get("Table 5", {}), found.get("Table 1", {})
        row = {"key": key, "name": card.name, "paradigm": card.paradigm, "trained": card.trained}
        row |= {"frozen": card.frozen or None, "tokens": ours.tokens, "batch": card.batch, "source": card.source}
        row |= {"steps_printed": table.get("steps"), "steps": ours.steps, "tflop_printed": table.get("tflop")}
        row |= {"tflop": ours.flop / TERA, "hours_1": first.get("hours"), "hours_5": table.get("hours")}
        tables = (flag for flag in flags if ", Table" in flag)
        row |= {"hours": ours.hours, "follows": "no" if any(tables) else "yes", "flags": flags, "note": card.note}
        out.append(row)
    return out


def cost_sheet(book: Book, utilisation: float) -> TextTable:
    """Table 5 with the hours of Table 1, ours beside, and notes on what does not follow."""
    found = rows(book, utilisation)
    table = [[_shown(c.key, row[c.key]) for c in COLUMNS] for row in found]
    notes = [flag for row in found for flag in row["flags"]]
    notes += [f"{row['name']}: {row['note']}" for row in found if row["note"]]
    return TextTable(f"Training cost at {utilisation / TERA:g} TFLOP/s a GPU", COLUMNS, table, notes)


def framework_sheet(book: Book, claims: Mapping[str, str]) -> TextTable:
    """Table 2, whose trainings are the cards', and what the methods here claim.

    Args:
        claims: of each registered method; others are left out.
    """
    columns = (Column("what", "", rank=0), *(Column(k, f.name, rank=1) for k, f in book.frameworks.items()))
    rows = list(dict.fromkeys(what for f in book.frameworks.values() for what in f.capabilities))
    table = [[what, *(f.capabilities.get(what, "-") for f in book.frameworks.values())] for what in rows]
    trained = [[c.name for c in book.cards.values() if c.framework == key] for key in book.frameworks]
    table += [["trained", *(", ".join(names) or "-" for names in trained)]]
    known = {
        f.name: [f"{name} {claims[name]}" for name in f.methods if name in claims] for f in book.frameworks.values()
    }
    notes = [f"{name}, claimed here: {', '.join(found)}" for name, found in known.items() if found]
    return TextTable("What each framework offers (Table 2)", columns, table, notes)


def _shown(key: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if key in ("trained", "frozen", "tokens", "batch"):
        unit = next((name for name, size in UNITS.items() if value >= size), "")
        return f"{value / UNITS.get(unit, 1):.3g}{unit}"
    return f"{value:.2g}" if key.startswith("tflop") else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(sheets: Sequence[TextTable]) -> str:
    """The tables whole, with their notes."""
    parts = ["# Training cost", ""]
    for sheet in sheets:
        parts += [f"## {sheet.title}", "", *markdown_lines([column.title for column in sheet.columns], sheet.rows), ""]
        parts += [*(f"- {note}" for note in sheet.notes), *([""] if sheet.notes else [])]
    return "\n".join(parts)
