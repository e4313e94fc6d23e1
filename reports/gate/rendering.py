"""The decision of a gate: one line, a table for a terminal, Markdown, JUnit XML and annotations of GitHub."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from stridebench.harness.errors import printable, printable_line
from stridebench.reports.gate.decision import EXIT, GateResult, GateRow
from stridebench.reports.gate.document import setting_of, titled
from stridebench.reports.text_table import Column, TextTable, markdown_lines, number

COLUMNS = (
    Column("cell", "cell", rank=0),
    Column("setting", "setting", rank=2),
    Column("metric", "metric", rank=1),
    Column("verdict", "verdict", rank=0),
    Column("before", "before", rank=4),
    Column("after", "after", rank=4),
    Column("change", "change", rank=1),
    Column("p", "p", rank=6),
    Column("visible", "visible drop", rank=3),
    Column("prompts", "prompts", rank=5, whole=True),
    Column("why", "why", rank=2, whole=True),
)


def sentence(result: GateResult) -> str:
    """Return the verdict and its reason in one line."""
    rows = [row for row in result.rows if row.verdict == result.verdict]
    if result.verdict == "pass":
        excluded = [row.visible or 0.0 for row in rows if row.p is not None and row.why != "improved"]
        if excluded:
            nothing = f"nothing dropped by more than {100 * result.loss:.3g} %"
            return f"pass: {nothing}; a drop of {100 * max(excluded):.2g} % would have been seen"
        equal = [row.visible for row in rows if row.why == "identical" and row.visible is not None and row.visible < 1]
        better = " or better" if any(row.why == "improved" for row in rows) else ""
        unlike = f"; in a run that differs, these prompts show drops from {100 * max(equal):.2g} % on" if equal else ""
        return f"pass: all {len(rows)} figures are those of the baseline{better}{unlike}"
    first = rows[0]
    what = f"{titled(first.cell, first.label)}: {first.title or first.metric or 'cell'}: {first.why}"
    looked = f"; a loss of {100 * result.loss:.3g} % was looked for" if result.verdict == "inconclusive" else ""
    return printable_line(f"{result.verdict}: {len(rows)} of {len(result.rows)} figures{looked}, first {what}")


def markdown(result: GateResult) -> str:
    """Return the verdict, a table of all rows, and the cells that only one side has."""
    lines = markdown_lines([column.title for column in COLUMNS], [_cells(row) for row in result.rows])
    notes = [f"- {printable_line(note)}" for note in _notes(result)]
    return "\n".join([f"# Gate: {sentence(result)}", "", *lines, "", *notes, ""])


def table(result: GateResult) -> TextTable:
    """Return the verdict and the rows that are not identical to the baseline's, for a terminal."""
    rows = [row for row in result.rows if row.why != "identical"]
    same = len(result.rows) - len(rows)
    notes = [f"{same} more figures are those of the baseline"] if same else []
    return TextTable(sentence(result), COLUMNS, [_cells(row) for row in rows], [*notes, *_notes(result)])


def _cells(row: GateRow) -> list[str]:
    return [
        row.label,
        setting_of(row.cell, row.label),
        row.title or row.metric,
        row.verdict,
        number(row.before, 3),
        number(row.after, 3),
        _percent(row.change) + (f" [{_percent(row.low)}, {_percent(row.high)}]" if row.p is not None else ""),
        number(row.p, 4),
        _percent(row.visible).lstrip("+"),
        str(row.prompts) if row.clusters in (0, row.prompts) else f"{row.prompts} in {row.clusters} clusters",
        row.why,
    ]


def _notes(result: GateResult) -> list[str]:
    return [
        "change: relative, below 0 is worse, with one-sided 95 % bounds; p: of no drop, Holm",
        "visible drop: a true drop of this size fails 95 times in 100",
        *(f"only in the baseline, not compared: {name}" for name in result.removed),
        *(f"only in the run, not compared: {name}" for name in result.added),
        *result.notes,
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _text(row: GateRow) -> str:
    return f"{row.why}; change {_percent(row.change)} [{_percent(row.low)}, {_percent(row.high)}]"


def junit(result: GateResult) -> str:
    """Return JUnit XML: one test case a row. Inconclusive rows are skipped tests with their reason."""
    counts = {word: sum(row.verdict == word for row in result.rows) for word in EXIT}
    suite = ET.Element(
        "testsuite",
        name="stride gate",
        tests=str(len(result.rows)),
        failures=str(counts["fail"]),
        errors=str(counts["error"]),
        skipped=str(counts["inconclusive"]),
    )
    words = {"fail": "failure", "error": "error", "inconclusive": "skipped"}
    for row in result.rows:
        case = ET.SubElement(
            suite, "testcase", classname=printable(row.cell), name=printable(f"{row.label}: {row.metric or 'present'}")
        )
        if row.verdict in words:
            ET.SubElement(case, words[row.verdict], message=printable(_text(row)))
        else:
            ET.SubElement(case, "system-out").text = printable(_text(row))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def github_annotations(result: GateResult) -> list[str]:
    """Return workflow commands of GitHub: an error for each row that failed, a warning for each that is open."""
    kinds = {"fail": "error", "error": "error", "inconclusive": "warning"}
    return [
        f"::{kinds[row.verdict]} title={_escaped(f'stride gate: {titled(row.cell, row.label)}', ':,')}::"
        + _escaped(f"{row.title or row.metric or 'cell'}: {_text(row)}")
        for row in result.rows
        if row.verdict in kinds
    ]


def _escaped(text: str, more: str = "") -> str:
    """A value of a workflow command: percent signs and line ends are escaped, in properties colons and commas too."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return printable(text)
