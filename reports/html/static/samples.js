"use strict";
/* The table of a cell's samples, and the view of one of them. Documents come from shards, each loaded when it is needed. */
const strideShards = new Map();
function strideShard(number, documents) { strideShards.set(number, documents); }
let strideRowsLoaded = null;
function strideRows(rows) { strideRowsLoaded = rows; }

class Samples {
  static LONG = 20000; // characters of a prompt that are shown at once

  constructor(page) {
    this.page = page;
    this.ribbon = new Ribbon();
    this.media = new Media(page.root, page.grid);
    this.section = document.getElementById("sample");
    this.now = null;
    for (const [id, move] of [["earlier", -1], ["later", 1]]) {
      document.getElementById(id).addEventListener("click", () => { location.hash = `sample-${this.now + move}`; });
    }
    document.getElementById("shut").addEventListener("click", () => this.close());
    addEventListener("hashchange", () => this.follow());
  }

  async start() {
    if (this.page.count === 0) return;
    if (this.page.rows === null) await this.load("rows.js");
    this.table(this.page.rows ?? strideRowsLoaded);
    await this.follow();
  }

  table(rows) {
    const link = (prompt, kind, row) => {
      if (kind !== "display") return prompt;
      const anchor = document.createElement("a");
      anchor.href = `#sample-${row[0]}`;
      anchor.textContent = prompt;
      return anchor;
    };
    const first = (index) => rows.find((row) => row[index + 1] !== null)?.[index + 1]; // a score may be missing
    const columns = this.page.names.map((name, index) => ({
      data: index + 1,
      className: typeof first(index) === "number" ? "num" : name === "output" ? "words" : "",
      render: index === 0 ? link : DataTable.render.text(),
      defaultContent: "–",
    }));
    const element = document.getElementById("sample-table");
    element.tBodies[0].replaceChildren();
    new DataTable(element, {
      data: rows,
      columns,
      order: [],
      autoWidth: false,
      pageLength: 25,
      createdRow: (row) => row.cells[0].setAttribute("scope", "row"),
      language: { search: "Search", zeroRecords: "No sample has these words." },
    });
  }

  /* A script file of this page's data folder. */
  load(file) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = this.page.base + file;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${file} is missing beside the page`));
      document.head.append(script);
    });
  }

  async document(index) {
    if (this.page.documents) return this.page.documents[index];
    let shard = this.page.starts.findLastIndex((start) => start <= index);
    if (!strideShards.has(shard)) await this.load(`${shard}.js`);
    return strideShards.get(shard)[index - this.page.starts[shard]];
  }

  async follow() {
    const match = /^#sample-(\d+)$/.exec(location.hash);
    if (!match || Number(match[1]) >= this.page.count) return;
    this.now = Number(match[1]);
    try {
      this.show(await this.document(this.now));
    } catch (error) {
      this.section.hidden = false;
      document.getElementById("sample-facts").textContent = error.message;
    }
  }

  show(sample) {
    this.section.hidden = false;
    document.getElementById("sample-title").textContent = sample.prompt;
    document.getElementById("earlier").disabled = this.now === 0;
    document.getElementById("later").disabled = this.now === this.page.count - 1;
    document.getElementById("sample-facts").textContent = Samples.facts(sample);
    Samples.long(document.getElementById("asked"), sample.asked);
    document.getElementById("asked-box").hidden = !sample.asked;
    document.getElementById("plain").textContent = Samples.remark(sample);
    this.media.show(sample);
    this.ribbon.show(sample);
    const steps = document.getElementById("steps");
    steps.replaceChildren();
    document.getElementById("steps-box").hidden = sample.count === 0;
    if (sample.count > 0) this.ribbon.table(steps);
    this.section.scrollIntoView({ block: "start" });
    this.section.focus({ preventScroll: true });
  }

  static facts(sample) {
    if (sample.facts) return sample.facts.join(" · ");
    const facts = [`repetition ${sample.repetition}`, sample.category, `${sample.promptTokens} prompt tokens`];
    facts.push(`prefill ${(sample.prefill / 1000).toFixed(1)} ms`);
    for (const [name, value] of Object.entries(sample.scores)) facts.push(`${name} ${typeof value === "number" ? Number(value.toPrecision(4)) : "–"}`);
    return facts.filter(Boolean).join(" · ");
  }

  static remark(sample) {
    if (sample.status !== "ok") return `Failed: ${sample.error || "no reason is stored"}`;
    if (sample.remark !== undefined) return sample.remark;
    if (sample.kinds === null) return "Positions were filled in any order, so that no token has one origin.";
    if (sample.pieces) return "";
    return sample.picture || sample.mesh ? "The ids of the tokens." : "Ids of tokens: the run holds no text of single tokens.";
  }

  /* A text of which only the beginning is laid out at first, where it is very long. */
  static long(element, text) {
    element.textContent = text.slice(0, Samples.LONG);
    if (text.length <= Samples.LONG) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `Show all ${text.length.toLocaleString("en")} characters`;
    button.addEventListener("click", () => { element.textContent = text; });
    element.append("… ", button);
  }

  close() {
    this.section.hidden = true;
    location.hash = "samples";
  }
}

new Samples(JSON.parse(document.getElementById("samples-data").textContent)).start();
