"use strict";
// Draws the figures of the page of charts (pages/charts.py) from the results of a model: lines, bars or dots.
(() => {
  const { safe, short, axis } = window.effbench;
  const PALE = 0.4; // opacity of marked results
  const TOO_WIDE = 100; // an interval whose bounds have a larger ratio is not drawn: it would make other figures too small
  const MIB = 2 ** 20;

  const valueOf = (point, metric) => point.figures[metric]?.value ?? null;
  const known = (points, metric) =>
    points.map((point) => valueOf(point, metric)).filter((value) => value !== null);

  /** Return the bounds of a metric. Those of a throughput follow from the period, or from the latency without one. */
  function boundsOf(point, metric) {
    if (metric !== "throughput_per_s") return point.figures[metric];
    const time = point.figures.period_ms || point.figures.latency_ms;
    if (!time?.low || !time.high) return {};
    const work = valueOf(point, metric) * time.value;
    return { low: work / time.high, high: work / time.low }; // a longer period means less throughput
  }

  /** Return how far the interval of a point extends above and below its value; 0 if it is not drawn. */
  function errorOf(point, metric) {
    const none = { above: 0, below: 0 };
    const value = valueOf(point, metric);
    if (value === null || point.status !== "ok") return none;
    const { low, high } = boundsOf(point, metric);
    if (!low || !high || high > TOO_WIDE * low) return none;
    return { above: high - value, below: value - low };
  }

  function errorBars(points, metric) {
    const errors = points.map((point) => errorOf(point, metric));
    return {
      type: "data",
      symmetric: false,
      thickness: 1.2,
      width: 3,
      array: errors.map(({ above }) => above),
      arrayminus: errors.map(({ below }) => below),
    };
  }

  /** Return the text on hover: which result it is, then one metric per line. */
  function hover(point, figure, index) {
    const lines = [
      `<b>${safe(point.mode)}</b> · ${safe(point.model)} · ${safe(index.axis.label)} ${point.x}`,
    ];
    if (point.status !== "ok") lines.push(point.status);
    for (const metric of [...figure.metrics, ...figure.hover]) {
      if (valueOf(point, metric) === null) continue;
      const { text, interval } = point.figures[metric];
      const bounds = interval ? ` (95 %: ${interval})` : "";
      lines.push(`${safe(index.metrics[metric])}: ${text}${bounds}`);
    }
    lines.push(`trials: ${point.trials}`);
    if (point.mark !== null) lines.push(`~ marked: ${safe(short(point.mark, 160))}`);
    return lines.join("<br>");
  }

  /** Return the trace of one mode with an appearance of its own. */
  function trace(points, figure, index, marker, more) {
    const [{ mode }] = points;
    return {
      type: "scatter",
      mode: "markers",
      name: safe(mode),
      meta: { mode },
      hoverinfo: "text",
      hovertext: points.map((point) => hover(point, figure, index)),
      marker: { color: index.modes[mode].color, ...marker },
      ...more,
    };
  }
  const symbols = (points, index) => ({
    symbol: index.modes[points[0].mode].symbol,
    size: 9,
    opacity: points.map((point) => (point.mark === null ? 1 : PALE)),
  });

  // --- axes ---

  function ratioOf(values) {
    const positive = values.filter((value) => value > 0);
    return positive.length ? Math.max(...positive) / Math.min(...positive) : 1;
  }
  /** Return a logarithmic axis, with ticks at 1, 2 and 5 if the values span a factor between 4 and 1000. */
  function logAxis(title, values) {
    const ratio = ratioOf(values);
    return axis(title, {
      type: "log",
      tickformat: ",~r",
      ...(ratio > 4 && ratio < 1000 ? { dtick: "D2" } : {}),
    });
  }
  /** Return the x axis of a small drawing: logarithmic, or from zero if labels of a logarithmic axis would overlap. */
  const smallAxis = (title, values) =>
    ratioOf(values) > 4 ? logAxis(title, values) : axis(title, { rangemode: "tozero", nticks: 5 });
  /** Return an axis with one row per mode, the first at the top. */
  const modeAxis = (modes, most = 18) =>
    axis("", {
      tickvals: modes.map((_, row) => row),
      ticktext: modes.map((mode) => safe(short(mode, most))),
      range: [modes.length - 0.5, -0.5],
    });
  /** Return the axis of `x`, with at most eight ticks at its values. */
  function xAxis(sizes, title) {
    const step = Math.ceil(sizes.length / 8);
    return axis(safe(title), {
      type: sizes[0] > 0 ? "log" : "linear",
      tickvals: sizes.filter((_, place) => place % step === 0),
    });
  }

  // --- kinds of figures ---

  const okValue = (point, metric) => (point.status === "ok" ? valueOf(point, metric) : null);
  const withFigures = (modes, metric) => modes.filter((points) => known(points, metric).length);
  const okValues = (modes, metric) =>
    modes
      .flat()
      .map((point) => okValue(point, metric))
      .filter((value) => value !== null);

  /** A line per mode on logarithmic axes (fractions: from zero); for a single size, a row of dots per mode. Lines break at results that are not ok. */
  function lines(modes, sizes, figure, index) {
    if (sizes.length === 1) return rowsOfDots(modes, sizes, figure, index);
    const [metric] = figure.metrics;
    const shown = withFigures(modes, metric);
    const data = shown.map((points) => {
      const { color, dash } = index.modes[points[0].mode];
      return trace(points, figure, index, symbols(points, index), {
        x: points.map((point) => point.x),
        y: points.map((point) => okValue(point, metric)),
        mode: "lines+markers",
        line: { color, dash, width: 1.8 },
        error_y: errorBars(points, metric),
      });
    });
    const fromZero = axis(figure.quantity, { rangemode: "tozero" });
    const yaxis = figure.is_fraction ? fromZero : logAxis(figure.quantity, okValues(shown, metric));
    return { data, layout: { height: 290, xaxis: xAxis(sizes, index.axis.title), yaxis } };
  }

  /** A row per mode with the dot of the single size. */
  function rowsOfDots(modes, [size], figure, index) {
    const [metric] = figure.metrics;
    const shown = withFigures(modes, metric);
    const data = shown.map((points, row) =>
      trace(points, figure, index, symbols(points, index), {
        x: points.map((point) => okValue(point, metric)),
        y: points.map(() => row),
        error_x: errorBars(points, metric),
      }),
    );
    const title = `${figure.quantity}, ${safe(index.axis.label)} ${size}`;
    const layout = {
      height: 90 + 26 * shown.length,
      xaxis: smallAxis(title, okValues(shown, metric)),
      yaxis: modeAxis(shown.map(([point]) => point.mode)),
    };
    return { data, layout };
  }

  /** Bars grouped by size; those of further metrics are hatched, in front of the first. */
  function bars(modes, sizes, figure, index) {
    const hatched = {
      pattern: { shape: "/", size: 6, solidity: 0.4, fgcolor: "#ffffff", fillmode: "overlay" },
    };
    const data = [];
    for (const points of modes) {
      figure.metrics.forEach((metric, number) => {
        if (!known(points, metric).some(Boolean)) return;
        data.push(
          trace(points, figure, index, number ? hatched : {}, {
            type: "bar",
            x: points.map((point) => String(point.x)),
            y: points.map((point) => (valueOf(point, metric) || 0) / MIB),
            offsetgroup: points[0].mode,
            alignmentgroup: "all",
          }),
        );
      });
    }
    const layout = {
      height: 290,
      barmode: "group",
      bargap: 0.18,
      bargroupgap: 0.06,
      xaxis: axis(safe(index.axis.title), {
        type: "category",
        categoryarray: sizes.map(String),
        showgrid: false,
      }),
      yaxis: axis(figure.quantity, { rangemode: "tozero", tickformat: "," }),
    };
    return { data, layout };
  }

  /** A row per mode with a mark per size: filled for the first metric, open for the others. */
  function dots(modes, sizes, figure, index) {
    const isShown = (point) => figure.metrics.some((metric) => valueOf(point, metric));
    const shown = modes.filter((points) => points.some(isShown));
    const data = [];
    shown.forEach((points, row) => {
      figure.metrics.forEach((metric, number) => {
        const some = points.filter((point) => valueOf(point, metric));
        if (!some.length) return;
        const { symbol, ...look } = symbols(some, index);
        const offset = (number - (figure.metrics.length - 1) / 2) * 0.28;
        data.push(
          trace(
            some,
            figure,
            index,
            { ...look, symbol: number ? `${symbol}-open` : symbol },
            { x: known(some, metric), y: some.map(() => row + offset) },
          ),
        );
      });
    });
    const values = figure.metrics.flatMap((metric) => known(shown.flat(), metric));
    return {
      data,
      layout: {
        height: 90 + 30 * shown.length,
        xaxis: smallAxis(figure.quantity, values),
        yaxis: modeAxis(shown.map(([point]) => point.mode)),
      },
    };
  }

  /** A row per start with its parts one after the other; a click in the legend hides a part. */
  function stack(starts, figure) {
    const rows = starts.map((_, row) => row);
    const data = figure.parts.map(({ name, title, color }) => ({
      type: "bar",
      orientation: "h",
      name: title,
      y: rows,
      x: starts.map((start) => start.parts[name] ?? 0),
      marker: { color },
      hoverinfo: "text",
      hovertext: starts.map((start) => stackHover(start, title, start.parts[name])),
    }));
    const layout = {
      height: 150 + 30 * starts.length,
      barmode: "stack",
      bargap: 0.25,
      showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" },
      xaxis: axis(figure.quantity, { rangemode: "tozero" }),
      yaxis: modeAxis(
        starts.map(({ name }) => name),
        28,
      ),
    };
    return { data, layout };
  }

  function stackHover(start, title, seconds) {
    const lines = [
      `<b>${safe(start.name)}</b>`,
      `${title}: ${(seconds ?? 0).toFixed(2)} s`,
      `first answer after ${start.total}`,
    ];
    if (start.mark !== null) lines.push(`~ marked: ${safe(short(start.mark, 160))}`);
    return lines.join("<br>");
  }

  const KINDS = { lines, bars, dots };

  /** Return the figure `name` of a model's results. */
  window.effbench.figure = (name, all, index) => {
    const figure = index.figures[name];
    if (figure.kind === "stack") return stack(all, figure);
    const some = all.filter(
      (point) => figure.of_failed || figure.kind === "lines" || point.status === "ok",
    );
    const sizes = [...new Set(some.map((point) => point.x))].sort((a, b) => a - b);
    const modes = Object.keys(index.modes).map((mode) =>
      some.filter((point) => point.mode === mode).sort((a, b) => a.x - b.x),
    );
    return KINDS[figure.kind](
      modes.filter((points) => points.length),
      sizes,
      figure,
      index,
    );
  };
})();
