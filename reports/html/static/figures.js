"use strict";
/* Draws the figures with plotly when they come near the window, in the colours of the theme. */
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

  const draw = async (element) => {
    await plotly();
    const spec = JSON.parse(document.getElementById(element.dataset.figure).textContent);
    let height = Number(element.dataset.height);
    if (element.clientWidth < 520 && spec.layout.legend?.entrywidth < 1) { // names need a line each
      spec.layout.legend.entrywidth = 1;
      height += 10 * spec.data.length;
    }
    const drawn = layout(spec.layout, height);
    if (element.clientWidth < 520 && spec.layout.legend?.y > 1) { // a legend above takes a line for each pair of names
      const lines = Math.ceil(spec.data.length / 2) + 1;
      drawn.margin.t += 18 * lines;
      drawn.height += 18 * lines;
      drawn.legend = { ...spec.layout.legend, y: 1.02, yanchor: "bottom" };
    }
    const config = { ...CONFIG, toImageButtonOptions: { filename: element.dataset.figure } };
    Plotly.react(element, spec.data, drawn, config);
    element.dataset.drawn = "yes";
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
  addEventListener("load", () => plots.forEach((element) => watcher.observe(element)));
  document.addEventListener("themechange", () => plots.forEach((one) => one.dataset.drawn && draw(one)));
  addEventListener("beforeprint", () => plots.forEach(draw));
})();
