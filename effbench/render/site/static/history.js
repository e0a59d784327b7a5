"use strict";
// Draws one series: one point per sweep with its interval, and its changes.
document.addEventListener("DOMContentLoaded", async () => {
  const { load, element, significant, bytes, complain, place, grid, show, safe, short, axis } =
    window.effbench;
  const section = document.getElementById("series");
  if (!section) return;
  const chart = section.querySelector(".chart");
  const choice = document.getElementById("metric");
  const title = document.getElementById("series-name");
  const eventList = document.getElementById("series-events");
  const numbers = section.querySelector("details");
  const GRAY = "#7d8590";

  let index, sweepsOfSite;
  try {
    index = await load(section.dataset.src);
    sweepsOfSite = await load(section.dataset.sweeps);
  } catch (error) {
    complain(section, error);
    return;
  }

  /** Format a value as effbench.core.metrics does: three significant digits and a unit. */
  function format(name, value) {
    if (value === null || value === undefined) return "—";
    const { unit } = index.metrics[name];
    if (unit === "bytes") return bytes(value);
    if (index.metrics[name].exact && Number.isInteger(value)) return value.toLocaleString("en"); // a count
    if (unit === "×") return `${value >= 0.0995 ? value.toFixed(2) : value.toPrecision(2)}×`;
    return unit ? `${significant(value)} ${unit}` : String(Number(value.toPrecision(3)));
  }
  const sweepName = (at) => {
    const { id, name, label } = index.sweeps[at];
    return label || name || id;
  };

  /** Return { id, metric } from the URL; a cell's key (or its start) selects its series on the hardware `on`, or its first series. */
  function wanted() {
    const { series, cell, metric, on } = place.read();
    const [id, name] = (series || "").split(".");
    if (index.lines[id]) return { id, metric: name };
    if (cell) {
      const found = Object.keys(index.lines).find(
        (one) =>
          cell.length >= 6 &&
          (!on || index.lines[one].hardware === on) &&
          (index.lines[one].key.startsWith(cell) || cell.startsWith(index.lines[one].key)),
      );
      if (found) return { id: found, metric: metric || choice.value };
      return { missing: `The cell ${cell} has no history in this database.` };
    }
    if (series) return { missing: `There is no series ${series} in this database.` };
    return index.first;
  }

  /** Return whether to draw a point: any figure of an ok result, only counters of a degraded one. */
  const drawn = (line, name, i) => {
    const value = line.figures[name]?.values[i];
    if (value === null || value === undefined) return false;
    return !line.status[i] || (index.metrics[name].exact && line.status[i].status === "degraded");
  };

  /** Return why a point is marked, or undefined. */
  const markOf = (line, name, i) => (index.metrics[name].timed ? line.marks[i] : undefined);

  /** Return { low, high }, the bounds of a point's interval, or null without one. */
  function boundsOf(line, name, i) {
    const { low, high } = line.figures[name] || {};
    return low && low[i] !== null && high[i] !== null ? { low: low[i], high: high[i] } : null;
  }

  /** Return the URL of a point's cell, or null if this site does not include its sweep. */
  function cellOf(line, facts, i) {
    const held = sweepsOfSite.find(
      ({ sweep, hardware }) => sweep === index.sweeps[line.at[i]].id && hardware === facts.hardware,
    );
    if (!held) return null;
    return `${held.folder}/cell.html#cell=${encodeURIComponent(facts.key)}${held.environments > 1 ? `&env=${encodeURIComponent(line.environments[i])}` : ""}`;
  }

  /** Return the series as a Plotly figure. */
  function figure(line, facts, name) {
    const { values = [], low } = line.figures[name] || {};
    const color = index.modes[facts.mode].color;
    const at = line.at;
    const events = line.events.filter(
      (event) => event.metric === name || event.metric === "status",
    );
    const hover = at.map((sweep, i) => {
      const { id, label, date, time } = index.sweeps[sweep];
      const bounds = boundsOf(line, name, i);
      const interval = bounds
        ? `95 % interval ${format(name, bounds.low)} to ${format(name, bounds.high)}`
        : "";
      const bad = line.status[i];
      const state = bad ? `${bad.status}: ${short(bad.reason || "no reason recorded", 90)}` : "";
      const why = markOf(line, name, i);
      return [
        `<b>${why ? "~" : ""}${safe(format(name, values[i]))}</b>`,
        safe(interval),
        why ? safe(`marked: ${short(why, 90)}`) : "",
        `${line.trials[i]} trial${line.trials[i] === 1 ? "" : "s"}`,
        safe(state),
        safe(label ? `${short(label, 60)} · ${id}` : id),
        `${safe(`${date} ${time}`)} UTC`,
        cellOf(line, facts, i) ? "click to open its cell" : "",
      ]
        .filter(Boolean)
        .join("<br>");
    });
    const data = [];
    const x = [],
      y = [],
      over = [],
      under = [],
      text = [],
      symbol = [];
    for (let i = 0; i < at.length; i += 1) {
      if (!drawn(line, name, i)) {
        if (x.length) {
          x.push(i);
          y.push(null);
          over.push(0);
          under.push(0);
          text.push("");
          symbol.push("circle");
        }
        continue;
      }
      x.push(i);
      y.push(values[i]);
      text.push(hover[i]);
      symbol.push(markOf(line, name, i) ? "circle-open" : "circle");
      const bounds = boundsOf(line, name, i);
      over.push(bounds ? bounds.high - values[i] : 0);
      under.push(bounds ? values[i] - bounds.low : 0);
    }
    data.push({
      type: "scatter",
      mode: "lines+markers",
      x,
      y,
      text,
      hoverinfo: "text",
      connectgaps: false,
      line: { color, width: 1.6 },
      marker: { color, symbol, size: at.length > 80 ? 4 : 6 },
      error_y: {
        type: "data",
        symmetric: false,
        array: over,
        arrayminus: under,
        visible: Boolean(low),
        color,
        thickness: 1,
        width: at.length > 60 ? 0 : 3,
      },
    });

    const shapes = [],
      annotations = [];
    const upright = (x) =>
      shapes.push({
        type: "line",
        xref: "x",
        yref: "paper",
        x0: x,
        x1: x,
        y0: 0,
        y1: 1,
        line: { color: GRAY, width: 2 },
        layer: "below",
      });
    const note = (x, text, y, more = {}) =>
      annotations.push({
        x,
        xref: "x",
        y,
        yref: "paper",
        yanchor: "bottom",
        xanchor: "center",
        text,
        showarrow: false,
        font: { size: 11 },
        ...more,
      });
    for (const event of events) {
      if (event.metric !== name) continue;
      const x = at.indexOf(event.after) - 0.5;
      upright(x);
      const sign = event.worse ? "▲" : "▼";
      note(x, sign, 1.0, {
        hovertext: safe(`${event.text} · ${event.state}`),
        captureevents: true,
      });
    }
    const bad = Object.keys(line.status).map(Number);
    for (const i of bad)
      note(i, "✕", 0, {
        font: { size: 13, color: GRAY },
        hovertext: hover[i],
        captureevents: true,
      });

    const step = Math.max(
      1,
      Math.ceil(at.length / Math.max(3, Math.floor(chart.clientWidth / 110))),
    );
    const ticks = at.map((_, i) => i).filter((i) => i % step === 0);
    const isOneDay = new Set(at.map((sweep) => index.sweeps[sweep].date)).size === 1;
    const when = (sweep) => (isOneDay ? index.sweeps[sweep].time : index.sweeps[sweep].date);
    const unit = index.metrics[name].unit;
    const word = index.metrics[name].title;
    const present = values.filter((_, i) => drawn(line, name, i));
    const yaxis = axis(unit ? `${word} (${unit})` : word);
    if (present.length && Math.min(...present) === Math.max(...present) && !low) {
      const only = present[0];
      yaxis.range = [
        only - Math.max(1, Math.abs(only) * 0.1),
        only + Math.max(1, Math.abs(only) * 0.1),
      ];
    }
    const layout = {
      height: 380,
      hovermode: "closest",
      margin: { l: 12, r: 18, t: 46, b: 8 },
      shapes,
      annotations,
      yaxis,
      xaxis: axis("sweep, oldest first", {
        showgrid: false,
        range: [-0.7, at.length - 0.3],
        tickangle: 0,
        tickvals: ticks,
        ticktext: ticks.map((i) => `${safe(short(sweepName(at[i]), 15))}<br>${when(at[i])}`),
      }),
    };
    return { data, layout };
  }

  /** Return the series as a table. */
  function table(line, facts, name) {
    const { values = [], low, high } = line.figures[name] || {};
    const number = (value, why) => {
      if (value === null || value === undefined) return { text: format(name, value) };
      return why
        ? { text: `~${format(name, value)}`, value, tone: "marked", hint: `marked: ${why}` }
        : { text: format(name, value), value };
    };
    const columns = [
      { title: "sweep" },
      { title: "label" },
      { title: "started (UTC)" },
      { title: "status", filter: true },
      {
        title: index.metrics[name].unit
          ? `${index.metrics[name].title} (${index.metrics[name].unit})`
          : index.metrics[name].title,
        numeric: true,
      },
      ...(low
        ? [
            { title: "95 % interval, low", numeric: true },
            { title: "high", numeric: true },
          ]
        : []),
      { title: "trials", numeric: true },
      { title: "marks" },
    ];
    const rows = line.at.map((sweep, i) => {
      const { id, name: sweepsName, label, date, time } = index.sweeps[sweep];
      const marks = [
        ...line.events
          .filter((event) => event.after === sweep && event.metric === name)
          .map((event) => `${event.text}, ${event.state}`),
      ];
      const bad = line.status[i];
      const link = cellOf(line, facts, i);
      return [
        {
          text: id,
          details: sweepsName || undefined,
          tone: "nowrap",
          ...(link ? { href: link, hint: "open its cell", tone: "nowrap linked" } : {}),
        },
        label || "—",
        `${date} ${time}`,
        bad ? { text: bad.status, tone: "status", hint: bad.reason || "no reason recorded" } : "ok",
        number(values[i], markOf(line, name, i)),
        ...(low ? [number(low[i]), number(high[i])] : []),
        line.trials[i],
        marks.join("; "),
      ];
    });
    return {
      caption: `${index.metrics[name].title} of ${facts.name}, one row per sweep`,
      columns,
      rows,
    };
  }

  let links = []; // URLs of the cells of the shown points
  let clickable = false;
  let turn = 0;
  async function open(scroll) {
    const request = (turn += 1);
    const { id, metric, missing } = wanted();
    links = [];
    if (missing) {
      title.textContent = missing;
      eventList.replaceChildren();
      chart.hidden = true;
      numbers.hidden = true;
      return;
    }
    chart.hidden = false;
    numbers.hidden = false;
    const facts = index.lines[id];
    let line;
    try {
      line = (await load(`data/history-lines-${facts.file}.js`))[id];
    } catch (error) {
      complain(chart, error);
      return;
    }
    if (request !== turn) return; // another series was chosen meanwhile
    const metrics = Object.keys(index.metrics).filter((key) =>
      line.at.some((_, i) => drawn(line, key, i)),
    );
    for (const option of choice.options) option.disabled = !metrics.includes(option.value);
    const name = metrics.includes(metric) ? metric : metrics[0];
    title.textContent = index.several ? `${facts.name} on ${facts.place}` : facts.name;
    const listed = (events) =>
      events.filter((event) => event.metric === name || event.metric === "status");
    const word = (event) =>
      element("b", { text: `${event.metric === "status" ? "status " : ""}${event.text}` });
    eventList.replaceChildren(
      ...listed(line.events).map((event) =>
        element(
          "li",
          {},
          word(event),
          ` since ${sweepName(event.after)} (before: ${sweepName(event.before)}), ${event.state}`,
        ),
      ),
    );
    links = line.at.map((_, i) => cellOf(line, facts, i));
    section.dataset.series = name ? `${id}.${name}` : id;
    if (!name) {
      chart.hidden = true;
      numbers.hidden = true;
      eventList.replaceChildren(
        element("li", { text: "There is nothing to draw: the cell has no ok result." }),
      );
      return;
    }
    choice.value = name;
    chart.setAttribute(
      "aria-label",
      `${index.metrics[name].title} of ${facts.name} over ${line.at.length} sweeps; the numbers follow as a table`,
    );
    const spot = numbers.querySelector("div");
    spot.replaceChildren();
    const fill = () => {
      if (numbers.open && !spot.hasChildNodes()) grid(spot, table(line, facts, name));
    };
    numbers.ontoggle = fill;
    fill();
    if (scroll) section.scrollIntoView();
    try {
      await show(chart, figure(line, facts, name));
      if (!clickable)
        chart.on("plotly_click", ({ points }) => {
          const link = links[points[0].x];
          if (link) location.href = link;
        });
      clickable = true;
    } catch (error) {
      complain(chart, error);
    }
  }

  // the list of all cells: one row per line
  const columns = [
    { title: "cell" },
    { title: "model", filter: true },
    { title: "mode", filter: true },
    ...(index.several ? [{ title: "hardware", filter: true }] : []),
    { title: "sweeps", numeric: true },
    { title: "last sweep" },
    { title: "last status", filter: true },
    { title: "latency", numeric: true, help: "in its last sweep" },
    { title: "changes", numeric: true },
    { title: "open", numeric: true, help: "worse, and the last of their series" },
  ];
  const rows = Object.entries(index.lines).map(([id, facts]) => {
    const status = facts.status;
    return [
      { text: facts.name, href: `#series=${id}.${choice.options[0].value}`, tone: "name" },
      facts.model,
      { text: facts.mode, glyph: index.modes[facts.mode] },
      ...(index.several ? [facts.place] : []),
      facts.count,
      {
        text: sweepName(facts.last),
        value: `${index.sweeps[facts.last].date} ${index.sweeps[facts.last].time}`,
      },
      status === "ok" ? status : { text: status, tone: "status" },
      facts.latency === null
        ? "—"
        : {
            text: `${facts.mark ? "~" : ""}${format("latency_ms", facts.latency)}`,
            value: facts.latency,
            ...(facts.mark ? { tone: "marked", hint: `marked: ${facts.mark}` } : {}),
          },
      facts.changes,
      facts.open,
    ];
  });
  grid(
    document.getElementById("list"),
    {
      caption: "All cells with a history",
      columns,
      rows,
      order: { column: columns.length - 1, direction: "desc" },
    },
    { page: 25 },
  );

  choice.addEventListener("change", () => {
    const [id] = section.dataset.series.split(".");
    place.write({ series: `${id}.${choice.value}`, cell: "", metric: "", on: "" });
    open(false);
  });
  // other anchors of this page do not change the series
  window.addEventListener("hashchange", () => {
    if (place.read().series || place.read().cell) open(true);
  });
  await open(Boolean(place.read().series || place.read().cell));
});
