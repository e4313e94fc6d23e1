"""What trainings cost: floating-point operations, steps and GPU hours, next to a paper's Tables 1, 2 and 5.

Source: "Cross-Regression", appendix C: C = 6 P D (eq. 36), or 2 P_base D + 6 P_aux D with a frozen base (note to
Table 5); H = C / (3600 U) (eq. 37); S = D / B (eq. 38).
Symbols: P parameters, D tokens, B tokens of a batch, U sustained FLOP/s of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from stridebench.harness.errors import UsageError
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.reports.text_table import Column, TextTable, markdown_lines

CARDS = Path(__file__).parents[1] / "data" / "training_cost.yaml"
TERA = 1e12
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


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Printed = Annotated[Decimal, BeforeValidator(str)]
"""A printed number with its digits."""


class _CostData(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PrintedCost(_CostData):
    """The values that a paper prints of a training in one place."""

    tflop: Printed | None = None
    hours: Printed | None = None
    steps: Printed | None = None
    tokens: Printed | None = None

    @property
    def values(self) -> dict[str, Decimal]:
        """Return the values that are printed."""
        return self.model_dump(exclude_none=True)


class Card(_CostData):
    """Size and data of one training.

    Args:
        trained: P, or P_aux if a base model is frozen.
        tokens: D, as the paper's formula takes it.
        frozen: P_base, used in forward passes only; 0 if nothing is frozen.
        batch: B, or None if the source has none.
        epochs: passes over the tokens that D does not count.
    """

    name: str
    paradigm: str
    source: str
    trained: Positive
    tokens: Positive
    frozen: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    batch: Positive | None = None
    epochs: Positive = 1.0
    framework: str = ""
    note: str = ""
    printed: dict[str, PrintedCost] = {}


class Offer(_CostData):
    """A capability of a framework: whether it is offered, and in words."""

    offered: bool | None = None
    text: str = ""

    def __str__(self) -> str:
        marks = {True: "yes", False: "no", None: ""}
        return ": ".join(words for words in (marks[self.offered], self.text) if words)


class Framework(_CostData):
    """A way to decode in parallel: its name, the methods here that follow it, and its capabilities."""

    name: str
    methods: tuple[str, ...]
    offers: dict[str, Offer]

    def summary(self) -> Mapping[str, object]:
        """Return the framework as JSON values, its capabilities in words."""
        words = {what: str(offer) for what, offer in self.offers.items()}
        return {"name": self.name, "methods": list(self.methods), "capabilities": words}


class Book(_CostData):
    """Cards and frameworks by key, and U in FLOP/s."""

    utilisation: Positive
    cards: dict[str, Card]
    frameworks: dict[str, Framework] = {}

    @model_validator(mode="after")
    def _known(self) -> Book:
        for key, card in self.cards.items():
            if card.framework and card.framework not in self.frameworks:
                raise ValueError(f"card {key!r}: there is no framework {card.framework!r} below `frameworks`")
        return self


@dataclass(frozen=True)
class TrainingCost:
    """C in FLOP, D in tokens, S, and H in GPU hours."""

    flop: float
    tokens: float
    steps: float | None
    hours: float


def cost(card: Card, utilisation: float, epochs: float = 1.0) -> TrainingCost:
    """Compute the cost by equations 36 to 38, over ``epochs`` passes."""
    tokens = card.tokens * epochs
    flop = (2 * card.frozen + 6 * card.trained) * tokens
    steps = None if card.batch is None else tokens / card.batch
    return TrainingCost(flop, tokens, steps, flop / (3600 * utilisation))


def follows(printed: Decimal, value: float) -> bool:
    """Whether a value rounds to the printed one. Trailing zeros of the printed value are not digits."""
    half = Decimal((0, (5,), int(printed.normalize().as_tuple().exponent) - 1))
    return abs(Decimal(value) - printed) <= half


def checks(card: Card, utilisation: float) -> Iterator[str]:
    """Yield a line for each printed value that the card's formula does not give, or cannot compute."""
    total = cost(card, utilisation)
    computed = {"tflop": total.flop / TERA, "hours": total.hours, "steps": total.steps, "tokens": total.tokens}
    units = {"tflop": " TFLOP", "hours": " h", "steps": " steps", "tokens": " tokens"}
    for where, printed in card.printed.items():
        for key, value in printed.values.items():
            expected = computed[key]
            if expected is None:
                yield f"{card.name}, {where}: {float(value):.6g}{units[key]} printed; no batch to count them by"
            elif not follows(value, expected):
                unit, ratio = units[key], float(value) / expected
                times = f" (x {ratio:.3g})" if abs(ratio - 1) > 0.01 else ""
                yield f"{card.name}, {where}: {float(value):.6g}{unit} printed, {expected:.6g} by its formula{times}"
    if card.epochs != 1:
        with_epochs = cost(card, utilisation, card.epochs)
        yield (
            f"{card.name}: its {card.epochs:g} epochs are not in its tokens; with them "
            f"{with_epochs.flop / TERA:.2g} TFLOP, {with_epochs.hours:.3g} h"
        )


def read(file: Path = CARDS) -> Book:
    """Read cards from a file."""
    try:
        return Book.model_validate(load_yaml(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read the cards {file}: {error}. {CARDS} is an example") from error
    except ValidationError as error:
        faults = [f"{file}: {' '.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise UsageError("\n".join([*faults, f"{CARDS} is an example"])) from error


def rows(book: Book, utilisation: float) -> list[dict[str, Any]]:
    """Return one row a card; a number is None if the card lacks it.

    ``flags`` lists the printed values that the card's formula does not give.

    Args:
        utilisation: U of the computed hours. Printed hours are checked with the book's U.
    """
    return [_row(key, card, book.utilisation, utilisation) for key, card in book.cards.items()]


def _row(key: str, card: Card, printed_utilisation: float, utilisation: float) -> dict[str, Any]:
    computed, flags = cost(card, utilisation), list(checks(card, printed_utilisation))
    printed = {where: {k: float(v) for k, v in one.values.items()} for where, one in card.printed.items()}
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


def framework_table(book: Book, claims: Mapping[str, str | None]) -> TextTable:
    """Return Table 2 with the trainings of the cards, and notes on what the methods here claim.

    Args:
        claims: the claim of each registered method. Methods that are not registered are left out.
    """
    frameworks = book.frameworks
    columns = (Column("what", "", rank=0), *(Column(key, f.name, rank=1) for key, f in frameworks.items()))
    capabilities = list(dict.fromkeys(what for f in frameworks.values() for what in f.offers))
    cells = [[what, *(str(f.offers.get(what, "-")) for f in frameworks.values())] for what in capabilities]
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
