"use strict";
// Raw samples of a cell's trials, in the order of measurement and as a cumulative distribution.
(() => {
  const { element, safe, axis } = window.effbench;
  // distinct in common colour vision, on light and dark; symbols distinguish trials without colour
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f98"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "star"];
  const count = (list, name) => list.reduce((sum, one) => sum + one[name], 0).toLocaleString("en");
  const quantile = (sorted, fraction) => sorted[Math.floor(fraction * (sorted.length - 1))];

  /** Decode points of cell_data.py: float32 numbers in base64. */
  const unpack = (points) => [
    ...new Float32Array(
      Uint8Array.from(atob(points), (character) => character.charCodeAt(0)).buffer,
    ),
  ];

  /** Return the figure of one timer, the number of points above its frame, and the largest point. */
  function figure({ title: name, trials }, label) {
    const points = trials.map(({ points: packed }) => unpack(packed).filter(Number.isFinite));
    const all = points.flat().sort((a, b) => a - b);
    const high = quantile(all, 0.99);
    const top = high + 0.8 * (high - all[0]) || undefined;
    const frame = top > all[0] ? { range: [all[0] - 0.05 * (top - all[0]), top] } : {};
    const data = trials.flatMap(({ trial }, index) => {
      if (!points[index].length) return [];
      const color = COLORS[trial % COLORS.length];
      const symbol = SYMBOLS[(trial + Math.floor(trial / COLORS.length)) % SYMBOLS.length];
      const sorted = [...points[index]].sort((a, b) => a - b);
      const last = Math.max(1, sorted.length - 1);
      const shared = {
        type: "scatter",
        legendgroup: String(trial),
        name: label(trial),
        hovertemplate: `${label(trial)}<br>%{y:.4g}<extra></extra>`,
      };
      return [
        {
          ...shared,
          mode: "markers",
          x: points[index].map((_, place) => index + 0.06 + (0.88 * place) / last),
          y: points[index],
          marker: { color, symbol, size: 4, opacity: 0.75 },
        },
        {
          ...shared,
          mode: "lines",
          x: [index + 0.03, index + 0.97],
          y: Array(2).fill(quantile(sorted, 0.5)),
          line: { color: "#8a8f98", width: 2 },
          showlegend: false,
        },
        {
          ...shared,
          mode: "lines",
          x: sorted,
          y: sorted.map((_, place) => (place + 1) / sorted.length),
          xaxis: "x2",
          yaxis: "y2",
          line: { color, width: 1.8, dash: ["solid", "dash", "dot", "dashdot"][trial % 4] },
          showlegend: false,
          hovertemplate: `${label(trial)}: %{y:.1%} up to %{x:.4g}<extra></extra>`,
        },
      ];
    });
    const title = safe(`${name} (ms)`);
    const step = Math.ceil(trials.length / 12);
    const ticks = trials.map((_, index) => index).filter((index) => index % step === 0);
    const layout = {
      height: 640,
      showlegend: trials.length > 1,
      legend: { orientation: "h", y: -0.15 },
      xaxis: axis("trial (samples in order)", {
        range: [0, trials.length],
        showgrid: false,
        tickvals: ticks.map((at) => at + 0.5),
        ticktext: ticks.map((at) => label(trials[at].trial)),
      }),
      yaxis: axis(title, { domain: [0.6, 1], ...frame }),
      xaxis2: axis(title, { anchor: "y2", ...frame }),
      yaxis2: axis("fraction of samples", {
        domain: [0, 0.42],
        anchor: "x2",
        range: [0, 1.02],
        tickformat: ".0%",
      }),
    };
    return {
      spec: { data, layout },
      above: all.filter((value) => value > top).length,
      most: all[all.length - 1],
    };
  }

  /** Fill `place` with the figures of `timers` (see cell_data.py); `label` returns the name of a trial. */
  function show(place, timers, label) {
    const chart = element("div", {
      class: "chart",
      style: "height:640px",
      role: "group",
      "aria-label": "Samples in order, and their cumulative distribution",
    });
    const caption = element("p", { class: "caption" });

    function draw(timer) {
      for (const button of buttons)
        button.setAttribute("aria-pressed", String(button.dataset.timer === timer.name));
      const { spec, above, most } = figure(timer, label);
      caption.textContent = `Samples taken: ${count(timer.trials, "taken")}, stored: ${count(timer.trials, "stored")}; the figure shows an even selection. The grey line is its median.`;
      if (most === undefined) {
        caption.textContent = "No sample is a finite number.";
        return;
      }
      if (above) {
        const verb = above === 1 ? "is" : "are";
        const largest = Number(most.toPrecision(4));
        caption.textContent += ` ${above} of them ${verb} above the frame, up to ${largest} ms; autoscale shows them.`;
      }
      window.effbench.show(chart, spec);
      place.dataset.timer = timer.name;
    }
    const buttons = timers.map((timer) =>
      element("button", {
        type: "button",
        "data-timer": timer.name,
        text: timer.title,
        onclick: () => draw(timer),
      }),
    );
    place.replaceChildren(
      element("div", { class: "switch", role: "group", "aria-label": "Timer" }, ...buttons),
      caption,
      element("div", { class: "chart-box" }, chart),
    );
    draw(timers[0]);
  }

  window.effbench.samples = show;
})();
