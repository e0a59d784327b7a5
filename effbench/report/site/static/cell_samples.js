"use strict";
// Raw samples of a cell's trials: in order, as a histogram and as a cumulative distribution.
(() => {
  const { element } = window.effbench;
  // told apart in common colour visions, on light and dark; symbols say the same again
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f98"];
  const SYMBOLS = [["circle", "●"], ["square", "■"], ["diamond", "◆"], ["triangle-up", "▲"], ["cross", "✚"], ["triangle-down", "▼"], ["star", "★"]];
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const NAMES = { latency_ms: "latency", period_ms: "period", warmup_ms: "warm-up calls" };
  // one of 49 pairs: the eighth trial has the first one's colour and another symbol
  const look = (trial) => {
    const [symbol, glyph] = SYMBOLS[(trial + Math.floor(trial / COLORS.length)) % SYMBOLS.length];
    return { color: COLORS[trial % COLORS.length], symbol, glyph };
  };
  const digits = (value) => String(Number(value.toPrecision(4)));

  const unitOf = (timer) => (timer.match(/_(ms|us|ns|s)$/) || [])[1] || "";
  const nameOf = (timer) => NAMES[timer] || timer.replace(/_(ms|us|ns|s)$/, "").replace(/_/g, " ");
  const titleOf = (timer) => (unitOf(timer) ? `${nameOf(timer)} (${unitOf(timer)})` : nameOf(timer));

  /** The points of packing.py: for each trial the samples that are shown, with their places among those stored. */
  function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed.points), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    let offset = 0;
    return packed.shown.map((shown, index) => {
      const values = [];
      const places = [];
      for (let i = 0; i < shown; i += 1, offset += 4) {
        values.push(view.getFloat32(offset, true));
        places.push(shown === packed.stored[index] ? i : Math.floor((i * (packed.stored[index] - 1)) / Math.max(1, shown - 1)));
      }
      return { values, places };
    });
  }

  const middle = (values) => {
    const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
    if (!sorted.length) return null;
    const half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };

  const layout = (height, x, y) => ({
    template: {}, height, autosize: true, dragmode: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 12 }, margin: { l: 12, r: 14, t: 10, b: 8 }, showlegend: false, hoverlabel: { align: "left" },
    xaxis: { automargin: true, zeroline: false, ...x }, yaxis: { automargin: true, zeroline: false, ...y },
  });
  const axis = (text) => ({ title: { text, standoff: 8 } });

  /** The samples in the order in which they were taken, a column for each trial. */
  function inOrder(packed, timer, label, hidden, all) {
    const points = unpack(packed);
    const data = [];
    let outside = 0;
    let most = -Infinity;
    const span = packed.high - packed.low;
    const top = packed.low + 1.8 * span;
    points.forEach(({ values, places }, index) => {
      const trial = packed.trials[index];
      for (const value of values) { if (value > most) most = value; if (value > top) outside += 1; }
      if (hidden.has(trial)) return;
      const { color, symbol } = look(trial);
      const last = Math.max(1, packed.stored[index] - 1);
      data.push({
        type: "scatter", mode: "markers", x: places.map((place) => index + 0.06 + (0.88 * place) / last), y: values,
        marker: { color, symbol, size: 4, opacity: 0.75 }, customdata: places.map((place) => place + 1),
        hovertemplate: `${label(trial)}, sample %{customdata} of ${packed.stored[index]}<br>%{y:.4g} ${unitOf(timer)}<extra></extra>`,
      });
      const median = middle(values);
      data.push({ type: "scatter", mode: "lines", x: [index + 0.03, index + 0.97], y: [median, median], line: { color: "#8a8f98", width: 2 }, hoverinfo: "skip" });
    });
    const step = Math.ceil(points.length / 12);
    const ticks = points.map((_, index) => index).filter((index) => index % step === 0);
    const spec = {
      data,
      layout: layout(300, {
        ...axis("trials, each in the order of its samples"), range: [0, points.length], showgrid: false,
        tickvals: ticks.map((index) => index + 0.5), ticktext: ticks.map((index) => label(packed.trials[index])),
      }, axis(titleOf(timer))),
    };
    if (!all && outside && span > 0) spec.layout.yaxis.range = [packed.low - 0.1 * span, top];
    return { spec, outside, most };
  }

  const edges = (packed) => {
    const bins = packed.counts.find((row) => row.length).length - 1;
    return Array.from({ length: bins + 1 }, (_, i) => packed.low + ((packed.high - packed.low) * i) / bins);
  };

  function histogram(packed, timer, label, hidden) {
    const at = edges(packed);
    const width = at[1] - at[0];
    const data = packed.counts.map((row, index) => [row, packed.trials[index]]).filter(([row, trial]) => row.length && !hidden.has(trial)).map(([row, trial]) => ({
      type: "bar", x: at.slice(0, -1).map((low) => low + width / 2), y: row.slice(0, -1), width,
      marker: { color: look(trial).color, line: { width: 0 } },
      hovertemplate: `${label(trial)}, about %{x:.4g} ${unitOf(timer)}: %{y} samples<extra></extra>`,
    }));
    return { data, layout: { ...layout(260, axis(titleOf(timer)), axis("samples")), barmode: "stack", bargap: 0 } };
  }

  function cumulative(packed, timer, label, hidden) {
    const at = edges(packed);
    const data = packed.counts.map((row, index) => [row, packed.trials[index]]).filter(([row, trial]) => row.length && !hidden.has(trial)).map(([row, trial]) => {
      const total = row.reduce((sum, count) => sum + count, 0);
      let sum = 0;
      return {
        type: "scatter", mode: "lines", x: at, y: [0, ...row.slice(0, -1).map((count) => { sum += count; return sum / total; })],
        line: { color: look(trial).color, width: 1.8, dash: ["solid", "dash", "dot", "dashdot"][trial % 4] },
        hovertemplate: `${label(trial)}: %{y:.1%} up to %{x:.4g} ${unitOf(timer)}<extra></extra>`,
      };
    });
    return { data, layout: layout(260, axis(titleOf(timer)), { ...axis("share of samples"), range: [0, 1.02], tickformat: ".0%" }) };
  }

  /** The histogram's counts, a column for each trial. */
  function numbers(packed, timer, label) {
    const at = edges(packed);
    const columns = [{ title: `from (${unitOf(timer) || "value"})`, numeric: true }, { title: "to", numeric: true }, ...packed.trials.map((trial) => ({ title: label(trial), numeric: true }))];
    const bin = (index) => packed.counts.map((row) => (row.length ? row[index] : null));
    const rows = at.slice(0, -1).map((low, index) => [{ t: digits(low), v: low }, { t: digits(at[index + 1]), v: at[index + 1] }, ...bin(index)]);
    rows.push([{ t: digits(packed.high), v: packed.high }, { t: "—" }, ...bin(at.length - 1)]);
    return { caption: `Samples of ${nameOf(timer)} by size`, columns, rows };
  }

  /** Fill `place` with the figures of `samples` (timer -> packed); `label` names a trial. */
  function show(place, samples, label) {
    const order = ["latency_ms", "period_ms"];
    const rank = (timer) => (timer === "warmup_ms" ? 9 : order.includes(timer) ? order.indexOf(timer) : 5);
    const timers = Object.keys(samples).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    const hidden = new Set();
    let all = false;
    let timer = timers[0];
    const chart = (height, name) => element("div", { class: "chart", style: `height:${height}px`, role: "group", "aria-label": `${name}; the numbers follow as a table` });
    const first = chart(300, "Samples in the order in which they were taken");
    const second = chart(260, "Histogram of the samples");
    const third = chart(260, "Cumulative distribution of the samples");
    const said = element("p", { class: "caption" });
    const outside = element("p", { class: "caption" });
    const legend = element("div", { class: "legend", role: "group", "aria-label": "Trials shown" });
    const details = element("details", { class: "numbers" }, element("summary", { text: "The numbers" }));
    const counts = element("div");
    details.append(counts);

    const buttons = timers.map((name) => element("button", {
      type: "button", "data-timer": name, "aria-pressed": String(name === timer), text: nameOf(name),
      onclick: () => { timer = name; all = false; for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.timer === name)); draw(); },
    }));
    details.addEventListener("toggle", () => { if (details.open) window.effbench.grid(counts, numbers(samples[timer], timer, label)); });

    function draw() {
      const packed = samples[timer];
      const total = (list) => list.reduce((sum, count) => sum + count, 0);
      const taken = total(packed.taken);
      const stored = total(packed.stored);
      const shown = total(packed.shown);
      const parts = [`${taken.toLocaleString("en")} samples of ${packed.trials.length} ${packed.trials.length === 1 ? "trial" : "trials"}`];
      if (stored < taken) parts.push(`${stored.toLocaleString("en")} are stored, evenly chosen`);
      if (shown < stored) parts.push(`${shown.toLocaleString("en")} evenly chosen ones are drawn in order, all stored ones in the distributions`);
      said.textContent = `${parts.join("; ")}. The grey line is the median of what is drawn of a trial.`;
      legend.replaceChildren(...packed.trials.map((trial) => element("button", {
        type: "button", "aria-pressed": String(!hidden.has(trial)),
        onclick: () => { if (hidden.has(trial)) hidden.delete(trial); else hidden.add(trial); draw(); },
      }, element("span", { class: "mode" }, element("span", { class: "glyph", style: `color:${look(trial).color}`, "aria-hidden": "true", text: look(trial).glyph }), label(trial)))));
      if (packed.low === null) { said.textContent = "No sample is a finite number."; return; }
      const ordered = inOrder(packed, timer, label, hidden, all);
      const above = total(packed.counts.map((row) => (row.length ? row[row.length - 1] : 0)));
      const texts = [];
      if (above) texts.push(`${above.toLocaleString("en")} of ${stored.toLocaleString("en")} stored samples (${digits((100 * above) / stored)} %) lie above ${digits(packed.high)} ${unitOf(timer)}, beyond the distributions. `);
      if (ordered.outside && !all) texts.push(`${ordered.outside} drawn ones lie above the frame, up to ${digits(ordered.most)} ${unitOf(timer)}. `);
      outside.replaceChildren(...texts);
      if (ordered.outside) outside.append(element("button", { type: "button", class: "quiet", text: all ? "leave out the slowest" : "show all", onclick: () => { all = !all; draw(); } }));
      window.effbench.show(first, ordered.spec);
      window.effbench.show(second, histogram(packed, timer, label, hidden));
      window.effbench.show(third, cumulative(packed, timer, label, hidden));
      if (details.open) window.effbench.grid(counts, numbers(packed, timer, label));
      place.dataset.timer = timer;
    }

    place.replaceChildren(
      element("div", { class: "switch", role: "group", "aria-label": "Timer" }, ...buttons), said, legend,
      element("figure", { class: "panel" }, element("figcaption", { text: "In order" }), element("div", { class: "chart-box" }, first)), outside,
      element("div", { class: "panels two" },
        element("figure", { class: "panel" }, element("figcaption", { text: "How many took how long" }), element("div", { class: "chart-box" }, second)),
        element("figure", { class: "panel" }, element("figcaption", { text: "Which share was done by then" }), element("div", { class: "chart-box" }, third))),
      details,
    );
    draw();
  }

  window.effbench.samples = { show, unpack, look };
})();
