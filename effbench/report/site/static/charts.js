"use strict";
// Draws the figure `data-src` of each `.chart` when it comes into view; site.css sets the colours of text and grid.
(() => {
  const { load, complain } = window.effbench;
  const MOST_AHEAD = 60;
  const hidden = new Map(); // section -> modes that are switched off
  const specs = new WeakMap(); // drawn element -> figure

  /** Draw `spec` into `chart`. */
  async function show(chart, spec) {
    specs.set(chart, spec);
    const off = hidden.get(chart.closest("section"));
    const data = spec.data.map((trace) => ({ ...trace, visible: !off?.has(trace.meta?.mode) }));
    await Plotly.react(chart, data, structuredClone(spec.layout), {
      responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "autoScale2d", "resetScale2d"]],
    });
    chart.dataset.drawn = "true";
  }

  async function draw(chart) {
    try { await show(chart, await load(chart.dataset.src)); } catch (error) { complain(chart, error); }
  }
  const waiting = () => [...document.querySelectorAll(".chart[data-src]")].filter((chart) => !specs.has(chart) && !chart.closest("[hidden]"));

  /** Draw figures out of view, one at a time, so that prints and full-page screenshots show every figure. */
  async function ahead() {
    for (const chart of waiting().slice(0, MOST_AHEAD)) {
      await new Promise((resolve) => setTimeout(resolve));
      if (!specs.has(chart)) await draw(chart);
    }
  }

  window.effbench.show = show;
  window.effbench.ahead = ahead;
  document.addEventListener("DOMContentLoaded", () => {
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "600px 0px" });
    document.querySelectorAll(".chart[data-src]").forEach((chart) => watcher.observe(chart));
    window.addEventListener("load", ahead);
    window.addEventListener("beforeprint", () => waiting().forEach(draw));
    for (const button of document.querySelectorAll(".legend button[data-mode]")) {
      button.addEventListener("click", () => {
        const section = button.closest("section");
        const off = hidden.get(section) || new Set();
        hidden.set(section, off);
        const on = off.has(button.dataset.mode);
        if (on) off.delete(button.dataset.mode); else off.add(button.dataset.mode);
        button.setAttribute("aria-pressed", String(on));
        for (const chart of section.querySelectorAll(".chart")) if (specs.has(chart)) show(chart, specs.get(chart));
      });
    }
  });
})();
