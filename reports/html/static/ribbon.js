"use strict";
/* The output of a sample as a ribbon of tokens, coloured by their origin, and its steps one by one. */
class Ribbon {
  static MOST = 20000; // tokens and steps that are drawn

  constructor() {
    this.element = document.getElementById("ribbon");
    this.said = document.getElementById("step");
    this.stepper = document.getElementById("stepper");
    this.back = document.getElementById("back");
    this.forth = document.getElementById("forth");
    this.back.addEventListener("click", () => this.go(this.now - 1));
    this.forth.addEventListener("click", () => this.go(this.now + 1));
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("click", (event) => {
      const step = event.target.dataset?.step;
      if (step !== undefined) this.go(Number(step));
    });
  }

  /* A column of the steps; one number stands for a column of equal numbers. */
  number(name, step) {
    const column = this.sample.steps[name];
    return Array.isArray(column) ? column[step] : column;
  }

  show(sample) {
    this.sample = sample;
    this.now = -1;
    this.element.replaceChildren();
    this.said.textContent = "";
    this.firsts = [];
    const tokens = sample.pieces ?? sample.tokens ?? [];
    const inOrder = sample.kinds !== null && sample.count > 0;
    this.stepper.hidden = sample.count === 0;
    if (inOrder) this.fill(sample, tokens.slice(0, Ribbon.MOST));
    else if (sample.status === "ok") this.element.textContent = sample.text || tokens.join(" ");
    this.legend(sample);
    if (sample.count > 0) this.go(0, false);
  }

  fill(sample, tokens) {
    const spans = document.createDocumentFragment();
    let step = 0, end = this.number("emitted", 0);
    for (const [index, token] of tokens.entries()) {
      while (index >= end && step < sample.count - 1) end += this.number("emitted", ++step);
      const span = document.createElement("span");
      const first = this.firsts[step] === undefined;
      if (first) this.firsts[step] = index;
      span.className = `token ${sample.kinds[index]}${sample.pieces ? "" : " id"}${first ? " first" : ""}`;
      span.dataset.step = step;
      span.textContent = String(token).replaceAll("\n", "⏎\n");
      if (sample.logprobs) span.title = `step ${step + 1}, log p = ${sample.logprobs[index]}`;
      spans.append(span, sample.pieces ? "" : " ");
    }
    this.element.append(spans);
  }

  legend(sample) {
    const list = document.getElementById("origins");
    list.hidden = sample.kinds === null || sample.count === 0;
    for (const item of list.children) {
      const count = [...(sample.kinds ?? "")].filter((kind) => kind === item.dataset.kind).length;
      item.hidden = count === 0;
      item.querySelector(".count").textContent = count;
    }
  }

  key(event) {
    const places = { ArrowLeft: this.now - 1, ArrowRight: this.now + 1, Home: 0, End: this.sample.count - 1 };
    if (!(event.key in places) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.go(places[event.key]);
  }

  go(step, scroll = true) {
    if (step < 0 || step >= this.sample.count) return;
    for (const span of this.element.querySelectorAll(".now")) span.classList.remove("now");
    this.now = step;
    const first = this.firsts[step];
    if (first !== undefined) {
      const spans = this.element.querySelectorAll(".token");
      for (let i = first; i < spans.length && Number(spans[i].dataset.step) === step; i++) spans[i].classList.add("now");
      if (scroll) spans[first].scrollIntoView({ block: "nearest" });
    }
    this.back.disabled = step === 0;
    this.forth.disabled = step === this.sample.count - 1;
    this.said.textContent = this.words(step);
  }

  words(step) {
    const of = (name) => this.number(name, step);
    const ms = (name) => `${(of(name) / 1000).toFixed(1)} ms`;
    const drafted = of("drafted")
      ? `${of("drafted")} drafted, ${of("tested")} tested, ${of("accepted")} accepted, `
      : "nothing drafted, ";
    const times = `${ms("wall")}: draft ${ms("draft")}, target ${ms("target")}, verify ${ms("verify")}, host ${ms("host")}`;
    const passes = of("nfe") === 1 ? "one pass" : `${of("nfe")} passes`;
    return `Step ${step + 1} of ${this.sample.count}: ${drafted}${of("emitted")} emitted; ${passes} of ${of("rows")} ${of("rows") === 1 ? "row" : "rows"}; ${times}`;
  }

  table(element) {
    const names = ["drafted", "tested", "accepted", "emitted", "forced", "nfe", "rows", "wall", "draft", "target", "verify", "host"];
    const timed = new Set(["wall", "draft", "target", "verify", "host"]);
    const head = element.createTHead().insertRow();
    for (const name of ["step", ...names.map((one) => (timed.has(one) ? `${one} ms` : one))]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = "num";
      cell.textContent = name;
      head.append(cell);
    }
    const body = element.createTBody();
    for (let step = 0; step < Math.min(this.sample.count, 1000); step++) {
      const row = body.insertRow();
      for (const value of [step + 1, ...names.map((one) => this.number(one, step) / (timed.has(one) ? 1000 : 1))]) {
        const cell = row.insertCell();
        cell.className = "num";
        cell.textContent = Number.isInteger(value) ? value : value.toFixed(2);
      }
    }
  }
}
