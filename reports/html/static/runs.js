"use strict";
/* The list of runs, with sorting and search. */
if (document.getElementById("runs")) {
  new DataTable("#runs", { paging: false, order: [[2, "desc"]], autoWidth: false, language: { search: "Search" } });
}
