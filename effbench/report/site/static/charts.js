"use strict";
// Draws each `.chart` when it comes into view: its figure from `data-src`, its colours from the theme.
(() => {
  const { load, complain, onTheme, theme } = window.effbench;
  const hidden = new Map(); // section -> modes that are switched off
  const specs = new Map(); // drawn element -> figure
  let looks = null;

  function themed(spec, section) {
    const colors = looks.themes[theme()];
    const off = hidden.get(section) || new Set();
    const data = spec.data.map((trace) => {
      const copy = { ...trace };
      if (trace.type === "heatmap") copy.colorscale = looks.diverging[theme()];
      if (trace.meta && off.has(trace.meta.mode)) copy.visible = false;
      return copy;
    });
    const layout = { ...spec.layout };
    layout.font = { ...layout.font, color: colors.ink };
    layout.hoverlabel = {
      ...layout.hoverlabel, bgcolor: colors.panel, bordercolor: colors.muted,
      font: { color: colors.ink, family: layout.font.family, size: 12 },
    };
    layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: colors.muted, activecolor: colors.ink };
    for (const key of Object.keys(layout)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      layout[key] = { ...layout[key], gridcolor: colors.line, linecolor: colors.muted, zerolinecolor: colors.muted, tickcolor: colors.muted };
    }
    return { data, layout };
  }

  /** At once: `looks` and the figure are there. */
  function paint(chart, spec) {
    specs.set(chart, spec);
    const { data, layout } = themed(spec, chart.closest("section"));
    const done = Plotly.react(chart, data, layout, {
      responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    });
    chart.dataset.drawn = "true";
    return done;
  }

  /** Draw `spec` into `chart` and keep it in step with the theme. */
  async function show(chart, spec) {
    looks = looks || (await load(`${document.documentElement.dataset.assets}/looks.js`));
    await paint(chart, spec);
  }
  const again = () => { for (const [chart, spec] of specs) if (chart.isConnected) paint(chart, spec); else specs.delete(chart); };

  async function draw(chart) {
    try { await show(chart, await fetched(chart)); } catch (error) { complain(chart, error); }
  }

  // Printing waits for nothing: figures that are out of sight are loaded when there is time, and drawn as it begins.
  const MOST_AHEAD = 60;
  const ready = new Map(); // element -> figure that was loaded
  const fetched = async (chart) => { const spec = await load(chart.dataset.src); ready.set(chart, spec); return spec; };
  const shown = (chart) => !chart.closest("[hidden]");
  async function ahead(charts) {
    for (const chart of charts.filter(shown).slice(0, MOST_AHEAD)) {
      if (ready.has(chart)) continue;
      try { await fetched(chart); } catch { /* said where it is drawn */ }
      await new Promise((resolve) => { (window.requestIdleCallback || setTimeout)(resolve); });
    }
  }

  window.effbench.show = show;
  document.addEventListener("DOMContentLoaded", () => {
    const charts = [...document.querySelectorAll(".chart[data-src]")];
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "600px 0px" });
    charts.forEach((chart) => watcher.observe(chart));
    onTheme(again);
    window.addEventListener("beforeprint", () => {
      for (const chart of charts.filter((one) => shown(one) && !specs.has(one))) {
        if (looks && ready.has(chart)) paint(chart, ready.get(chart)); else draw(chart);
      }
    });
    window.addEventListener("load", async () => {
      try { looks = looks || (await load(`${document.documentElement.dataset.assets}/looks.js`)); } catch { return; }
      await ahead(charts);
      document.documentElement.dataset.ready = "true";
    });

    for (const button of document.querySelectorAll(".legend button[data-mode]")) {
      button.addEventListener("click", () => {
        const section = button.closest("section");
        const off = hidden.get(section) || new Set();
        hidden.set(section, off);
        const on = off.has(button.dataset.mode);
        if (on) off.delete(button.dataset.mode); else off.add(button.dataset.mode);
        button.setAttribute("aria-pressed", String(on));
        for (const [chart, spec] of specs) if (section.contains(chart)) show(chart, spec);
      });
    }
    window.addEventListener("effbench-panels", () => ahead(charts)); // other ones are shown (models.js)
  });
})();
