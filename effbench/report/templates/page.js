"use strict";
(() => {
  const looks = JSON.parse(document.getElementById("looks").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Map(); // section -> modes that are switched off
  const drawn = new Set();
  let printing = false;

  const theme = () => (dark.matches && !printing ? "dark" : "light");

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

  const specs = new WeakMap();
  function draw(chart) {
    if (!specs.has(chart)) specs.set(chart, JSON.parse(chart.previousElementSibling.textContent));
    const { data, layout } = themed(specs.get(chart), chart.closest("section"));
    drawn.add(chart);
    return Plotly.react(chart, data, layout, {
      responsive: true, displaylogo: false,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    });
  }
  const redraw = () => drawn.forEach(draw);

  const charts = [...document.querySelectorAll(".chart")];
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "800px 0px" });
  charts.forEach((chart) => watcher.observe(chart));

  dark.addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => { printing = true; charts.forEach(draw); });
  window.addEventListener("afterprint", () => { printing = false; redraw(); });

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const section = button.closest("section");
      const off = hidden.get(section) || new Set();
      hidden.set(section, off);
      const show = off.has(button.dataset.mode);
      if (show) off.delete(button.dataset.mode); else off.add(button.dataset.mode);
      button.setAttribute("aria-pressed", String(show));
      drawn.forEach((chart) => { if (section.contains(chart)) draw(chart); });
    });
  }
})();
