"""The decision of a gate as Markdown, JUnit XML and annotations of GitHub."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from stridebench.harness.errors import printable, printable_line
from stridebench.reports.gate.decision import EXIT, GateResult, TestRow
from stridebench.reports.text_table import markdown_lines, number


def markdown(result: GateResult) -> str:
    """Return the verdict, a table of all rows, and the cells that only one side has."""
    names = _names(result)
    titles = ["cell", "metric", "verdict", "before", "after", "change", "p", "visible drop", "prompts", "why"]
    rows = [
        [
            names[row.cell, row.label],
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
        for row in result.rows
    ]
    notes = [
        "change: relative, below 0 is worse, with one-sided 95 % bounds; p: of no drop, Holm",
        "visible drop: a true drop of this size fails 95 times in 100",
        *(f"only in the baseline, not compared: {name}" for name in result.removed),
        *(f"only in the run, not compared: {name}" for name in result.added),
        *result.notes,
    ]
    lines = markdown_lines(titles, rows)
    return "\n".join(
        [
            f"# Gate: {result.verdict} (loss looked for: {100 * result.loss:.3g} %)",
            "",
            *lines,
            "",
            *(f"- {printable_line(n)}" for n in notes),
            "",
        ]
    )


def _names(result: GateResult) -> dict[tuple[str, str], str]:
    """What each cell is called: its label, and its setting too where several cells have that label."""
    cells = {(row.cell, row.label) for row in result.rows}
    labels = [label for _, label in cells]
    return {
        (cell, label): label if labels.count(label) == 1 else f"{label} ({_setting(cell, label)})"
        for cell, label in cells
    }


def _setting(cell: str, label: str) -> str:
    """The part of a cell's id behind the method: backbone, type, temperature and task."""
    return cell.removeprefix(label.replace(" ", "-")).strip(".").rpartition("-")[0] or cell


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _text(row: TestRow) -> str:
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
    kinds, names = {"fail": "error", "error": "error", "inconclusive": "warning"}, _names(result)
    return [
        f"::{kinds[row.verdict]} title={_escaped(f'stride gate: {names[row.cell, row.label]}', ':,')}::"
        + _escaped(f"{row.title or row.metric or 'cell'}: {_text(row)}")
        for row in result.rows
        if row.verdict in kinds
    ]


def _escaped(text: str, more: str = "") -> str:
    """A value of a workflow command: percent signs and line ends are escaped, in properties colons and commas too."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return printable(text)
