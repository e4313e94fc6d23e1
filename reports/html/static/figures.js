"use strict";
/* Draws the figures with plotly when they come near the window, in the colours of the theme, and the others while
   the browser has nothing else to do: it prints what is there and waits for nothing. */
(() => {
  const CONFIG = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
    displayModeBar: "hover",
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const axis = (own) => ({
    gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"), ...own,
    title: { ...own?.title, font: { size: 12, color: colour("--soft") }, standoff: 8 },
  });

  const layout = (own, height) => ({
    ...own,
    height,
    margin: { l: 62, r: 18, t: 18, b: 48 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--ink") },
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--ink"), size: 12 }, align: "left" },
    hovermode: "closest",
    xaxis: axis(own.xaxis),
    yaxis: axis(own.yaxis),
  });

  const address = new URL("plotly.min.js", document.currentScript.src).href;
  let library = null;
  const plotly = () => {
    library ??= new Promise((resolve) => {
      const script = document.createElement("script");
      script.src = address;
      script.onload = resolve;
      document.head.append(script);
    });
    return library;
  };

  const PAPER = 640; // pixels of a figure on a sheet
  let onPaper = false;
  const drawNow = (element) => {
    const spec = JSON.parse(document.getElementById(element.dataset.figure).textContent);
    let height = Number(element.dataset.height);
    const narrow = !onPaper && element.clientWidth < 520;
    if (narrow && spec.layout.legend?.entrywidth < 1) { // names need a line each
      spec.layout.legend.entrywidth = 1;
      height += 10 * spec.data.length;
    }
    const drawn = layout(spec.layout, height);
    if (narrow && spec.layout.legend?.y > 1) { // a legend above takes a line for each pair of names
      const lines = Math.ceil(spec.data.length / 2) + 1;
      drawn.margin.t += 18 * lines;
      drawn.height += 18 * lines;
      drawn.legend = { ...spec.layout.legend, y: 1.02, yanchor: "bottom" };
    }
    if (onPaper) drawn.width = PAPER;
    const config = { ...CONFIG, responsive: !onPaper, toImageButtonOptions: { filename: element.dataset.figure } };
    Plotly.react(element, spec.data, drawn, config);
    element.dataset.drawn = "yes";
  };
  const draw = async (element) => {
    await plotly();
    drawNow(element);
  };

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "400px" });
  const plots = document.querySelectorAll(".plot");
  plots.forEach((element) => {
    element.style.display = "block"; // an empty one is hidden, and would never come near the window
    element.style.minHeight = `${element.dataset.height}px`;
  });
  const idle = () => new Promise((next) => (window.requestIdleCallback ?? setTimeout)(next));
  addEventListener("load", async () => {
    plots.forEach((element) => watcher.observe(element));
    for (const element of plots) {
      await idle();
      if (!element.dataset.drawn) await draw(element);
    }
  });
  document.addEventListener("themechange", () => plots.forEach((one) => one.dataset.drawn && draw(one)));
  const root = document.documentElement;
  let wasDark = false;
  const print = (begins) => {
    if (begins) wasDark = root.classList.contains("dark");
    root.classList.toggle("dark", wasDark && !begins);
    onPaper = begins;
    if (window.Plotly) plots.forEach(drawNow);
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
