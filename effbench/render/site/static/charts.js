"use strict";
// Draws the figure `data-figure` of each `.chart` from its data `data-src`, and what all figures share; site.css sets the
// colours of text and grid.
(() => {
  const { load, complain } = window.effbench;
  const BASE = {
    template: {},
    autosize: true,
    dragmode: false,
    showlegend: false,
    hoverlabel: { align: "left" },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 12, r: 14, t: 28, b: 8 },
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12 },
  };
  const hidden = new Map(); // section -> modes that are switched off
  const specs = new WeakMap(); // drawn element -> figure

  /** Draw `spec` into `chart`. */
  async function show(chart, spec) {
    specs.set(chart, spec);
    const off = hidden.get(chart.closest("section"));
    chart.style.height = `${spec.layout.height}px`;
    const data = spec.data.map((trace) => ({ ...trace, visible: !off?.has(trace.meta?.mode) }));
    await Plotly.react(chart, data, structuredClone({ ...BASE, ...spec.layout }), {
      responsive: true,
      displaylogo: false,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "autoScale2d", "resetScale2d"]],
    });
    chart.dataset.drawn = "true";
  }

  async function draw(chart) {
    const { src, figure, index } = chart.dataset;
    try {
      await show(chart, window.effbench.figure(figure, await load(src), await load(index)));
    } catch (error) {
      complain(chart, error);
    }
  }
  const waiting = () =>
    [...document.querySelectorAll(".chart[data-src]")].filter(
      (chart) => !specs.has(chart) && !chart.closest("[hidden]"),
    );

  /** Draw the figures one at a time, also those out of view, which prints and full-page screenshots show. */
  async function drawAll() {
    for (const chart of waiting()) {
      await new Promise((resolve) => setTimeout(resolve));
      if (!specs.has(chart)) await draw(chart);
    }
  }

  /** Return text that Plotly shows literally: it reads tags and entities in any text. */
  const safe = (text) =>
    String(text ?? "")
      .replace(/\s+/g, " ")
      .replace(/&/g, "&amp;")
      .replace(/</g, "&lt;")
      .replace(/>/g, "&gt;");
  /** Shorten a text in the middle: both ends may distinguish names. */
  const short = (text, most) =>
    text.length <= most
      ? text
      : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}`;
  const axis = (text, more) => ({
    title: { text, standoff: 8 },
    automargin: true,
    zeroline: false,
    ...more,
  });

  Object.assign(window.effbench, { show, drawAll, safe, short, axis });
  document.addEventListener("DOMContentLoaded", () => {
    window.addEventListener("load", drawAll); // when models.js has hidden some
    window.addEventListener("beforeprint", () => waiting().forEach(draw));
    for (const button of document.querySelectorAll(".legend button[data-mode]")) {
      button.addEventListener("click", () => {
        const section = button.closest("section");
        const off = hidden.get(section) || new Set();
        hidden.set(section, off);
        const on = off.has(button.dataset.mode);
        if (on) off.delete(button.dataset.mode);
        else off.add(button.dataset.mode);
        button.setAttribute("aria-pressed", String(on));
        for (const chart of section.querySelectorAll(".chart"))
          if (specs.has(chart)) show(chart, specs.get(chart));
      });
    }
  });
})();
