"""Training costs as tables: a paper's Tables 5 and 1 next to our figures, and its Table 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stridebench.reports.cost.cards import TERA, Book, Card, checks, cost
from stridebench.reports.text_table import Column, TextTable, markdown_lines

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
    """Return one row a card; a number is None where the card lacks it.

    ``flags`` lists the printed values that the card's own formula does not give.

    Args:
        book: the cards.
        utilisation: U of the computed hours. Printed hours are checked with the book's U.
    """
    return [_row(key, card, book.utilisation, utilisation) for key, card in book.cards.items()]


def _row(key: str, card: Card, printed_utilisation: float, utilisation: float) -> dict[str, Any]:
    computed, flags = cost(card, utilisation), list(checks(card, printed_utilisation))
    printed = {where: {k: float(v) for k, v in values.items()} for where, values in card.printed.items()}
    table_5, table_1 = printed.get("Table 5", {}), printed.get("Table 1", {})
    return {
        "key": key,
        "name": card.name,
        "paradigm": card.paradigm,
        "trained": card.trained,
        "frozen": card.frozen or None,
        "tokens": computed.tokens,
        "batch": card.batch,
        "source": card.source,
        "steps_printed": table_5.get("steps"),
        "steps": computed.steps,
        "tflop_printed": table_5.get("tflop"),
        "tflop": computed.flop / TERA,
        "hours_1": table_1.get("hours"),
        "hours_5": table_5.get("hours"),
        "hours": computed.hours,
        "follows": "no" if any(", Table" in flag for flag in flags) else "yes",
        "flags": flags,
        "note": card.note,
    }


def cost_table(book: Book, utilisation: float) -> TextTable:
    """Return Table 5 with the hours of Table 1, our figures next to them, and notes on what does not follow."""
    cards = rows(book, utilisation)
    cells = [[_cell_text(column.key, card[column.key]) for column in COLUMNS] for card in cards]
    notes = [flag for card in cards for flag in card["flags"]]
    notes += [f"{card['name']}: {card['note']}" for card in cards if card["note"]]
    return TextTable(f"Training cost at {utilisation / TERA:g} TFLOP/s a GPU", COLUMNS, cells, notes)


def framework_table(book: Book, claims: Mapping[str, str]) -> TextTable:
    """Return Table 2 with the trainings of the cards, and notes on what the methods here claim.

    Args:
        book: the cards and frameworks.
        claims: the claim of each registered method. Methods that are not registered are left out.
    """
    frameworks = book.frameworks
    columns = (Column("what", "", rank=0), *(Column(key, f.name, rank=1) for key, f in frameworks.items()))
    capabilities = list(dict.fromkeys(what for f in frameworks.values() for what in f.capabilities))
    cells = [[what, *(f.capabilities.get(what, "-") for f in frameworks.values())] for what in capabilities]
    trained = [[c.name for c in book.cards.values() if c.framework == key] for key in frameworks]
    cells += [["trained", *(", ".join(names) or "-" for names in trained)]]
    notes = []
    for framework in frameworks.values():
        claimed = [f"{name} {claims[name]}" for name in framework.methods if name in claims]
        if claimed:
            notes.append(f"{framework.name}, claimed here: {', '.join(claimed)}")
    return TextTable("What each framework offers (Table 2)", columns, cells, notes)


def _cell_text(key: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if key in ("trained", "frozen", "tokens", "batch"):
        unit = next((name for name, size in UNITS.items() if value >= size), "")
        return f"{value / UNITS.get(unit, 1):.3g}{unit}"
    return f"{value:.2g}" if key.startswith("tflop") else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(tables: Sequence[TextTable]) -> str:
    """Return the tables with all columns, and their notes."""
    parts = ["# Training cost", ""]
    for table in tables:
        parts += [f"## {table.title}", "", *markdown_lines([column.title for column in table.columns], table.rows), ""]
        parts += [*(f"- {note}" for note in table.notes), *([""] if table.notes else [])]
    return "\n".join(parts)
