"use strict";
/* The list of runs, with sorting, and with a search that the address keeps. */
if (document.getElementById("runs")) {
  const asked = new URLSearchParams(location.search).get("search") ?? "";
  const table = new DataTable("#runs", { paging: false, order: [[2, "desc"]], autoWidth: false, search: { search: asked }, language: { search: "Search" } });
  table.on("search", () => {
    const words = table.search();
    history.replaceState(null, "", words ? `?${new URLSearchParams({ search: words })}` : location.pathname);
  });
}
