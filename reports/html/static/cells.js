"use strict";
/* The table of all cells: sorting and search by DataTables, filters by the values that its rows carry. */
(() => {
  const element = document.getElementById("headline");
  if (!element) return;
  const table = new DataTable(element, {
    paging: element.tBodies[0].rows.length > 100,
    pageLength: 100,
    order: [],
    autoWidth: false,
    stateSave: "follow" in document.body.dataset, // sorting and search outlive a reload
    stateDuration: -1,
    columnDefs: [{ targets: "num", orderSequence: ["desc", "asc", ""] }],
    language: { search: "Search", emptyTable: "No cell.", zeroRecords: "No cell has these values." },
  });

  const form = document.getElementById("facets");
  if (!form) return;
  const apply = () => {
    const chosen = [...new FormData(form)].filter(([, value]) => value !== "");
    const fits = (_text, _data, index) => {
      const values = table.row(index).node().dataset;
      return chosen.every(([facet, value]) => values[facet] === value);
    };
    table.search.fixed("facets", chosen.length ? fits : null).draw();
    const query = new URLSearchParams(chosen).toString();
    try {
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
    } catch { /* a page on the disk keeps its address */ }
  };
  form.hidden = false;
  for (const [facet, value] of new URLSearchParams(location.search)) {
    const select = form.elements.namedItem(facet);
    if (select instanceof HTMLSelectElement) select.value = value;
  }
  form.addEventListener("change", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  if (location.search) apply();
})();
