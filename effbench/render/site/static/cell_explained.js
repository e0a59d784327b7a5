"use strict";
// Where the time of a cell goes, and why it takes more or less time than another cell of its row (see explained.py).
(() => {
  const { load, element, grid, safe, short, axis, complain, place } = window.effbench;
  // distinct in common colour vision, on light and dark; the sign of each label distinguishes them without colour
  const LONGER = "#d55e00",
    SHORTER = "#0072b2",
    WHOLE = "#8a8f98";
  const ALONE = "alone"; // in the URL: no other cell
  const ROW = 29; // height of a bar with its gap

  const nameOf = (choice) => choice.with?.slice(0, 16) ?? ALONE;
  const isZero = (value, digits) => Number(value.toFixed(digits)) === 0;
  const fixed = (value, digits) => (isZero(value, digits) ? 0 : value).toFixed(digits);
  /** Return a difference with its sign; one that rounds to 0 has none. */
  function signed(value, digits) {
    const isMore = value > 0 && !isZero(value, digits);
    return isMore ? `+${fixed(value, digits)}` : fixed(value, digits);
  }
  const bounds = ({ low, high }, digits) =>
    low === null ? "" : `${signed(low, digits)} to ${signed(high, digits)}`;

  /** Return the bars from one latency to the other: `ms` from `start`, with `interval`; `term` is missing for the latencies. */
  function barsOf(choice, mode) {
    const whole = (name, ms) => ({ name, start: 0, ms, interval: { low: null } });
    const bars = choice.with ? [whole(choice.a, choice.a_ms.value)] : [];
    let level = choice.a_ms?.value ?? 0;
    for (const term of choice.terms) {
      bars.push({ name: term.name, start: level, ms: term.ms.value, interval: term.ms, term });
      level += term.ms.value;
    }
    return [...bars, whole(mode, choice.b_ms.value)];
  }

  /** Return a name for a narrow page: on two lines, or shortened. */
  function narrowed(name) {
    const space = name.length > 20 ? name.indexOf(" ", name.length / 3) : -1;
    if (space < 0) return safe(short(name, 20));
    return `${safe(short(name.slice(0, space), 20))}<br>${safe(short(name.slice(space + 1), 20))}`;
  }

  /** Return the range of the axis, on which the differences are visible. */
  function rangeOf(bars) {
    const levels = bars.map(({ start, ms }) => start + ms);
    const high = Math.max(...levels),
      low = Math.min(...levels);
    const span = Math.max(high - low, high / 10);
    const start = low - span > 0 ? low - span : Math.min(0, low - span / 5);
    return [start, high + (high - start) / 40];
  }

  /** Return the waterfall as a Plotly figure, with its numbers to the right of the bars. */
  function figure(choice, mode, width) {
    const bars = barsOf(choice, mode);
    const { digits } = choice;
    const rows = bars.map((_, row) => row);
    const half = bars.map(({ interval: { low, high } }) => (low === null ? 0 : (high - low) / 2));
    const label = ({ ms, term }) => (term && choice.with ? signed(ms, digits) : fixed(ms, digits));
    const wide = width > 600;
    const hover = bars.map((bar) => {
      const lines = [`<b>${safe(bar.name)}</b>: ${label(bar)} ms`];
      if (bar.term && choice.with)
        lines.push(
          `${bar.term.first_ms.toFixed(digits)} → ${bar.term.second_ms.toFixed(digits)} ms`,
        );
      if (bounds(bar.interval, digits))
        lines.push(`95 % interval ${bounds(bar.interval, digits)} ms`);
      return lines.join("<br>");
    });
    const data = [
      {
        type: "waterfall",
        orientation: "h",
        y: rows,
        x: bars.map(({ ms }) => ms),
        measure: bars.map(({ term }) => (term ? "relative" : "absolute")),
        hoverinfo: "text",
        hovertext: hover,
        connector: { line: { color: WHOLE, width: 1 } },
        increasing: { marker: { color: choice.with ? LONGER : SHORTER } },
        decreasing: { marker: { color: SHORTER } },
        totals: { marker: { color: WHOLE } },
      },
      {
        type: "scatter",
        mode: "markers",
        y: rows,
        yaxis: "y2",
        x: bars.map(({ start, ms }) => start + ms),
        marker: { opacity: 0 },
        hoverinfo: "skip",
        error_x: { type: "data", array: half, color: WHOLE, thickness: 1.5, width: 4 },
      },
    ];
    const names = bars.map(({ name }) => (wide ? safe(short(name, 40)) : narrowed(name)));
    const labels = bars.map((bar, row) =>
      wide && half[row] ? `${label(bar)} ± ${half[row].toFixed(digits)}` : label(bar),
    );
    const range = [bars.length - 0.5, -0.5]; // the first bar at the top
    const layout = {
      height: 70 + ROW * bars.length,
      margin: { l: 12, r: 14, t: 8, b: 8 },
      xaxis: axis("ms per call", { range: rangeOf(bars) }),
      yaxis: axis("", { tickvals: rows, ticktext: names, range, showgrid: false }),
      yaxis2: axis("", {
        tickvals: rows,
        ticktext: labels,
        range,
        showgrid: false,
        overlaying: "y",
        side: "right",
      }),
    };
    return { data, layout };
  }

  function table(caption, columns, rows) {
    const made = element("div");
    grid(made, { caption, columns, rows }, { page: 200 });
    return made;
  }

  /** Return the columns with times, and their cells for a term, kernel or work of the host. */
  function times(choice, mode) {
    const digits = choice.digits;
    const number = (title) => ({ title, numeric: true });
    const exact = (value) => ({ text: fixed(value, digits), value });
    if (!choice.with) return { columns: [number("ms")], cells: ({ second_ms: ms }) => [exact(ms)] };
    const toneOf = (value) => {
      if (isZero(value, digits)) return null;
      return value > 0 ? "bad" : "good";
    };
    const difference = (value) => ({ text: signed(value, digits), value, tone: toneOf(value) });
    return {
      columns: [number(`${choice.a} (ms)`), number(`${mode} (ms)`), number("difference")],
      cells: ({ first_ms: first, second_ms: second }) => [
        exact(first),
        exact(second),
        difference(second - first),
      ],
    };
  }

  const changeOf = ({ kind, into }) => (into ? `${kind} into ${into}` : kind);
  function namesOf(kernel) {
    const names = new Set([kernel.first_name, kernel.second_name]);
    return [...names].filter(Boolean).join(" → ");
  }

  /** Return the waterfall's numbers, the kernels that differ, and what the host did. */
  function tables(choice, mode, device) {
    const { columns, cells } = times(choice, mode);
    const { terms, host, digits } = choice;
    const kernels = (choice.kernels ?? []).filter(
      (kernel) => !isZero(kernel.second_ms - kernel.first_ms, digits),
    );
    const noun = device === "cpu" ? "operators" : "kernels";
    const parts = [
      element(
        "details",
        { class: "numbers" },
        element("summary", { text: "The numbers" }),
        table(
          "Parts of a call",
          [{ title: "part" }, ...columns, { title: "95 % interval", numeric: true }],
          terms.map((term) => [term.name, ...cells(term), bounds(term.ms, digits)]),
        ),
      ),
    ];
    if (kernels.length) {
      const Noun = device === "cpu" ? "Operators" : "Kernels";
      const title = `${Noun} that differ (${kernels.length} of ${choice.all_kernels} kinds)`;
      parts.push(
        element("h3", { text: title }),
        table(
          title,
          [
            { title: noun, numeric: true },
            { title: "change" },
            { title: "name", wide: true },
            { title: "class" },
            ...columns,
          ],
          kernels.map((kernel) => [
            kernel.count,
            { text: changeOf(kernel), tone: "nowrap" },
            namesOf(kernel),
            kernel.kernel_class,
            ...cells(kernel),
          ]),
        ),
      );
    }
    if (host.length) {
      parts.push(
        element("h3", { text: "What the host did meanwhile" }),
        table(
          "Work of the host",
          [{ title: "work" }, ...columns],
          host.map((work) => [work.name, ...cells(work)]),
        ),
      );
    }
    return parts;
  }

  /** Fill `box` with what explains the cell `key` of a mode, against the cell that is chosen or that the URL names. */
  async function show(box, key, { explained, mode, about }) {
    let choices = [];
    try {
      choices = (await load(explained))[key];
    } catch (error) {
      complain(box, error);
      return;
    }
    const chart = element("div", {
      class: "chart",
      role: "group",
      "aria-label": "Waterfall of the time of a call; the numbers below are the same",
    });
    const sentence = element("p", { id: "sentence" });
    const caption = element("p", { class: "caption" });
    const below = element("div");
    const select = element(
      "select",
      {
        id: "with",
        onchange: () => {
          place.write({ with: select.value });
          draw();
        },
      },
      ...choices.map((choice) =>
        element("option", { value: nameOf(choice), text: choice.a ?? "nothing: this cell alone" }),
      ),
    );

    function draw() {
      const choice = choices.find((one) => nameOf(one) === select.value);
      const spec = figure(choice, mode, box.clientWidth);
      const hasIntervals = choice.terms.some(({ ms }) => ms.low !== null);
      const [start] = spec.layout.xaxis.range;
      sentence.textContent = choice.sentence ?? "";
      sentence.hidden = !choice.sentence;
      const facts = [
        "Means over trials.",
        hasIntervals && "Grey lines: 95 % intervals.",
        start > 0 && "The axis does not start at 0.",
      ];
      caption.textContent = facts.filter(Boolean).join(" ");
      below.replaceChildren(...tables(choice, mode, about.device));
      window.effbench.show(chart, spec);
      box.dataset.with = select.value;
    }
    const wanted = place.read().with;
    if (choices.some((choice) => nameOf(choice) === wanted)) select.value = wanted;
    box.replaceChildren(
      element(
        "p",
        { class: "controls" },
        element("label", { for: "with", text: "compared with" }),
        select,
      ),
      sentence,
      element("div", { class: "chart-box" }, chart),
      caption,
      below,
    );
    draw();
  }

  window.effbench.explained = show;
})();
