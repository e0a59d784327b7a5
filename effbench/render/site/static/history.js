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
  const NO_REASON = "no reason recorded";

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
  const titleOf = (name) => {
    const { title: metric, unit } = index.metrics[name];
    return unit ? `${metric} (${unit})` : metric;
  };
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
      const isWanted = ({ key, hardware }) => {
        const isHere = !on || hardware === on;
        return isHere && (key.startsWith(cell) || cell.startsWith(key));
      };
      const ids = Object.keys(index.lines);
      const found = ids.find((one) => cell.length >= 6 && isWanted(index.lines[one]));
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
    const view = new URLSearchParams({ cell: facts.key });
    if (held.environments > 1) view.set("env", line.environments[i]);
    return `${held.folder}/cell.html#${view}`;
  }

  /** Return the text on hover over a point. */
  function hover(line, facts, name, i) {
    const { id, label, date, time } = index.sweeps[line.at[i]];
    const value = format(name, line.figures[name]?.values[i]);
    const bounds = boundsOf(line, name, i);
    const why = markOf(line, name, i);
    const bad = line.status[i];
    const trials = line.trials[i];
    const lines = [`<b>${why ? "~" : ""}${safe(value)}</b>`];
    if (bounds) {
      lines.push(safe(`95 % interval ${format(name, bounds.low)} to ${format(name, bounds.high)}`));
    }
    if (why) lines.push(safe(`marked: ${short(why, 90)}`));
    lines.push(`${trials} trial${trials === 1 ? "" : "s"}`);
    if (bad) lines.push(safe(`${bad.status}: ${short(bad.reason || NO_REASON, 90)}`));
    lines.push(safe(label ? `${short(label, 60)} · ${id}` : id));
    lines.push(`${safe(`${date} ${time}`)} UTC`);
    if (cellOf(line, facts, i)) lines.push("click to open its cell");
    return lines.join("<br>");
  }

  /** Return the points of the trace, from the first that is drawn; the line breaks at the others. */
  function pointsOf(line, name, texts) {
    const points = [];
    line.at.forEach((_, x) => {
      if (drawn(line, name, x)) {
        const y = line.figures[name].values[x];
        const { low, high } = boundsOf(line, name, x) ?? { low: y, high: y };
        const symbol = markOf(line, name, x) ? "circle-open" : "circle";
        points.push({ x, y, over: high - y, under: y - low, text: texts[x], symbol });
      } else if (points.length) {
        points.push({ x, y: null, over: 0, under: 0, text: "", symbol: "circle" });
      }
    });
    return points;
  }

  /** Return the trace of the points, with their intervals. */
  function traceOf(line, facts, name, texts) {
    const points = pointsOf(line, name, texts);
    const values = (key) => points.map((point) => point[key]);
    const color = index.modes[facts.mode].color;
    const count = line.at.length;
    return {
      type: "scatter",
      mode: "lines+markers",
      x: values("x"),
      y: values("y"),
      text: values("text"),
      hoverinfo: "text",
      connectgaps: false,
      line: { color, width: 1.6 },
      marker: { color, symbol: values("symbol"), size: count > 80 ? 4 : 6 },
      error_y: {
        type: "data",
        symmetric: false,
        array: values("over"),
        arrayminus: values("under"),
        visible: Boolean(line.figures[name]?.low),
        color,
        thickness: 1,
        width: count > 60 ? 0 : 3,
      },
    };
  }

  /** Return a note of the figure: a sign with a text on hover. */
  function note(x, y, text, hovertext, font) {
    return {
      x,
      xref: "x",
      y,
      yref: "paper",
      yanchor: "bottom",
      xanchor: "center",
      text,
      showarrow: false,
      font: { size: 11, ...font },
      hovertext,
      captureevents: true,
    };
  }

  /** Return the vertical lines of the changes, and the signs of changes and of results that are not ok. */
  function signsOf(line, name, texts) {
    const shapes = [];
    const annotations = [];
    for (const event of line.events) {
      if (event.metric !== name) continue;
      const x = line.at.indexOf(event.after) - 0.5; // before the first sweep of the new level
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
      const sign = event.worse ? "▲" : "▼";
      annotations.push(note(x, 1, sign, safe(`${event.text} · ${event.state}`)));
    }
    for (const i of Object.keys(line.status).map(Number)) {
      annotations.push(note(i, 0, "✕", texts[i], { size: 13, color: GRAY }));
    }
    return { shapes, annotations };
  }

  /** Return the axis of the sweeps, with as many labels as there is room for. */
  function sweepAxis(line) {
    const count = line.at.length;
    const most = Math.max(3, Math.floor(chart.clientWidth / 110));
    const step = Math.max(1, Math.ceil(count / most));
    const ticks = line.at.map((_, i) => i).filter((i) => i % step === 0);
    const isOneDay = new Set(line.at.map((sweep) => index.sweeps[sweep].date)).size === 1;
    const labelOf = (i) => {
      const { date, time } = index.sweeps[line.at[i]];
      const when = isOneDay ? time : date;
      return `${safe(short(sweepName(line.at[i]), 15))}<br>${when}`;
    };
    return axis("sweep, oldest first", {
      showgrid: false,
      range: [-0.7, count - 0.3],
      tickangle: 0,
      tickvals: ticks,
      ticktext: ticks.map(labelOf),
    });
  }

  /** Return the axis of the figures. Equal figures without intervals are in its middle. */
  function figureAxis(line, name) {
    const { values = [], low } = line.figures[name] || {};
    const made = axis(titleOf(name));
    const present = values.filter((_, i) => drawn(line, name, i));
    if (!low && new Set(present).size === 1) {
      const [only] = present;
      const margin = Math.max(1, Math.abs(only) * 0.1);
      made.range = [only - margin, only + margin];
    }
    return made;
  }

  /** Return the series as a Plotly figure. */
  function figure(line, facts, name) {
    const texts = line.at.map((_, i) => hover(line, facts, name, i));
    const layout = {
      height: 380,
      hovermode: "closest",
      margin: { l: 12, r: 18, t: 46, b: 8 },
      ...signsOf(line, name, texts),
      yaxis: figureAxis(line, name),
      xaxis: sweepAxis(line),
    };
    return { data: [traceOf(line, facts, name, texts)], layout };
  }

  /** Return a figure as a cell of a table. */
  function figureCell(name, value, why) {
    const text = format(name, value);
    if (value === null || value === undefined) return { text };
    if (!why) return { text, value };
    return { text: `~${text}`, value, tone: "marked", hint: `marked: ${why}` };
  }

  /** Return the series as a table. */
  function table(line, facts, name) {
    const { values = [], low, high } = line.figures[name] || {};
    const columns = [
      { title: "sweep" },
      { title: "label" },
      { title: "started (UTC)" },
      { title: "status", filter: true },
      { title: titleOf(name), numeric: true },
    ];
    if (low) {
      columns.push({ title: "95 % interval, low", numeric: true });
      columns.push({ title: "high", numeric: true });
    }
    columns.push({ title: "trials", numeric: true }, { title: "marks" });

    const rows = line.at.map((sweep, i) => {
      const { id, name: details, label, date, time } = index.sweeps[sweep];
      const named = { text: id, details: details || undefined, tone: "nowrap" };
      const href = cellOf(line, facts, i);
      if (href) Object.assign(named, { href, hint: "open its cell", tone: "nowrap linked" });
      const bad = line.status[i];
      const changes = line.events
        .filter((event) => event.after === sweep && event.metric === name)
        .map((event) => `${event.text}, ${event.state}`);
      const row = [
        named,
        label || "—",
        `${date} ${time}`,
        bad ? { text: bad.status, tone: "status", hint: bad.reason || NO_REASON } : "ok",
        figureCell(name, values[i], markOf(line, name, i)),
      ];
      if (low) row.push(figureCell(name, low[i]), figureCell(name, high[i]));
      row.push(line.trials[i], changes.join("; "));
      return row;
    });
    const caption = `${index.metrics[name].title} of ${facts.name}, one row per sweep`;
    return { caption, columns, rows };
  }

  /** Show this instead of a series. */
  function showNothing(...children) {
    eventList.replaceChildren(...children);
    chart.hidden = true;
    numbers.hidden = true;
  }

  /** Return the list item of a change. */
  function eventItem(event) {
    const what = event.metric === "status" ? `status ${event.text}` : event.text;
    const [after, before] = [sweepName(event.after), sweepName(event.before)];
    return element(
      "li",
      {},
      element("b", { text: what }),
      ` since ${after} (before: ${before}), ${event.state}`,
    );
  }

  let links = []; // URLs of the cells of the shown points
  let clickable = false;

  /** Draw the series and, once it is unfolded, its table. */
  async function draw(line, facts, name) {
    const { title: metric } = index.metrics[name];
    chart.setAttribute(
      "aria-label",
      `${metric} of ${facts.name} over ${line.at.length} sweeps; the numbers follow as a table`,
    );
    const spot = numbers.querySelector("div");
    spot.replaceChildren();
    const fill = () => {
      if (numbers.open && !spot.hasChildNodes()) grid(spot, table(line, facts, name));
    };
    numbers.ontoggle = fill;
    fill();
    links = line.at.map((_, i) => cellOf(line, facts, i));
    await show(chart, figure(line, facts, name));
    if (clickable) return;
    clickable = true;
    chart.on("plotly_click", ({ points }) => {
      const link = links[points[0].x];
      if (link) location.href = link;
    });
  }

  let turn = 0;
  async function open(scroll) {
    const request = (turn += 1);
    const { id, metric, missing } = wanted();
    if (missing) {
      title.textContent = missing;
      showNothing();
      return;
    }
    const facts = index.lines[id];
    try {
      const lines = await load(`data/history-lines-${facts.file}.js`);
      if (request !== turn) return; // another series was chosen meanwhile
      const line = lines[id];
      const metrics = Object.keys(index.metrics).filter((key) =>
        line.at.some((_, i) => drawn(line, key, i)),
      );
      for (const option of choice.options) option.disabled = !metrics.includes(option.value);
      const name = metrics.includes(metric) ? metric : metrics[0];
      title.textContent = index.several ? `${facts.name} on ${facts.place}` : facts.name;
      section.dataset.series = name ? `${id}.${name}` : id;
      if (!name) {
        showNothing(
          element("li", { text: "There is nothing to draw: the cell has no ok result." }),
        );
        return;
      }
      chart.hidden = false;
      numbers.hidden = false;
      choice.value = name;
      const events = line.events.filter(({ metric: of }) => of === name || of === "status");
      eventList.replaceChildren(...events.map(eventItem));
      const drawing = draw(line, facts, name);
      if (scroll) section.scrollIntoView();
      await drawing;
    } catch (error) {
      chart.hidden = false;
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
  function latencyCell({ latency, mark }) {
    if (latency === null) return "—";
    return figureCell("latency_ms", latency, mark);
  }
  const rows = Object.entries(index.lines).map(([id, facts]) => {
    const { status, last } = facts;
    const { date, time } = index.sweeps[last];
    return [
      { text: facts.name, href: `#series=${id}.${choice.options[0].value}`, tone: "name" },
      facts.model,
      { text: facts.mode, glyph: index.modes[facts.mode] },
      ...(index.several ? [facts.place] : []),
      facts.count,
      { text: sweepName(last), value: `${date} ${time}` },
      status === "ok" ? status : { text: status, tone: "status" },
      latencyCell(facts),
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
