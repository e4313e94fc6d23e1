"use strict";
/* Copies the rows of a table that are shown, in their order, as Markdown or LaTeX. */
(() => {
  const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}", "\u2212": "$-$", "\u2013": "--", "\u00d7": "$\\times$" };
  const escaped = (text) => text.replace(/[\\~^<>&%$#_{}\u2212\u2013\u00d7]/g, (one) => LATEX[one] ?? `\\${one}`);
  const textOf = (cell) => {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll(".flag, input").forEach((one) => one.remove());
    return copy.textContent.replace(/\s+/g, " ").trim();
  };
  const FORMS = {
    markdown: ([head, ...rows]) => [head, head.map((_, i) => (i ? "---:" : "---")), ...rows].map((row) => `| ${row.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`).join("\n"),
    latex: ([head, ...rows]) => {
      const line = (row) => `${row.map(escaped).join(" & ")} \\\\`;
      return ["% needs \\usepackage{booktabs}", `\\begin{tabular}{l${"r".repeat(head.length - 1)}}`, "\\toprule", line(head), "\\midrule", ...rows.map(line), "\\bottomrule", "\\end{tabular}"].join("\n");
    },
  };
  const copy = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
    area.select();
    document.execCommand("copy"); // where a page of the disk has no clipboard of its own
    area.remove();
  };
  for (const bar of document.querySelectorAll(".copy")) {
    const table = document.getElementById(bar.dataset.table), said = bar.querySelector("[role=status]");
    bar.hidden = false;
    bar.addEventListener("click", async (event) => {
      const form = FORMS[event.target.dataset?.form];
      if (!form) return;
      const lines = [table.tHead.rows[0], ...table.tBodies[0].rows].map((row) => [...row.cells].map(textOf));
      try {
        await copy(form(lines));
        said.textContent = `${lines.length - 1} rows copied`;
      } catch {
        said.textContent = "the browser refused";
      }
    });
  }
})();

/* The table of all cells: sorting and search by DataTables, filters by the values that its rows carry. */
(() => {
  const element = document.getElementById("headline");
  if (!element) return;
  const params = new URLSearchParams(location.search);
  const table = new DataTable(element, {
    paging: element.tBodies[0].rows.length > 100,
    pageLength: 100,
    order: [],
    autoWidth: false,
    search: { search: params.get("search") ?? "" },
    stateSave: "follow" in document.body.dataset, // sorting and search outlive a reload
    stateDuration: -1,
    columnDefs: [{ targets: "num", orderSequence: ["desc", "asc", ""] }],
    language: { search: "Search", emptyTable: "No cell.", zeroRecords: "No cell has these values." },
  });

  const choose = document.querySelector(".choose[data-table=headline]");
  choose.hidden = false;
  table.columns().every(function (index) {
    if (!index) return;
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: this.visible() });
    const label = document.createElement("label");
    label.append(box, ` ${this.header().textContent}`);
    box.addEventListener("change", () => this.visible(box.checked));
    choose.append(label);
  });

  const form = document.getElementById("facets");
  const chosen = () => (form ? [...new FormData(form)].filter(([, value]) => value !== "") : []);
  const remember = () => {
    const words = table.search(), query = new URLSearchParams([...chosen(), ...(words ? [["search", words]] : [])]).toString();
    try {
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
    } catch { /* a page on the disk keeps its address */ }
  };
  table.on("search", remember);
  if (!form) return;
  const apply = () => {
    const facets = chosen();
    const fits = (_text, _data, index) => {
      const values = table.row(index).node().dataset;
      return facets.every(([facet, value]) => values[facet] === value);
    };
    table.search.fixed("facets", facets.length ? fits : null).draw();
    remember();
  };
  form.hidden = false;
  for (const [facet, value] of params) {
    const select = form.elements.namedItem(facet);
    if (select instanceof HTMLSelectElement) select.value = value;
  }
  form.addEventListener("change", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  if (chosen().length) apply();
})();
