"use strict";
// Shows the cell in the URL (#cell=KEY, and &env=ENVIRONMENT if there are several), or the list of all cells.
document.addEventListener("DOMContentLoaded", async () => {
  const { load, grid, linked, element, bytes, complain, copy, place, samples, explained } =
    window.effbench;
  const root = document.getElementById("cells");
  if (!root) return;
  const target = document.getElementById("cell");
  const list = document.getElementById("list");
  const heading = document.querySelector("h1");
  const title = document.title;
  const HEADLINES = [
    "latency_ms",
    "period_ms",
    "gpu_busy_ms",
    "speedup",
    "period_speedup",
    "ttft_ms",
    "tpot_ms",
    "tokens_per_s",
    "throughput_per_s",
    "scaling_efficiency",
    "compile_cold_s",
    "peak_reserved_bytes",
  ];
  const LONG = 60; // characters of a text; longer ones get no column of a table
  let index = null;

  const number = (count, noun, end = "s") => `${count} ${noun}${count === 1 ? "" : end}`;

  /** Return { key, entries } of the cell whose key starts with `key`, or null. Files hold keys in ascending order. */
  async function find(key) {
    let at = -1;
    index.chunks.forEach(({ first_key: first }, number) => {
      if (first.slice(0, key.length) <= key) at = number;
    });
    for (const number of [at, at - 1]) {
      if (number < 0) continue;
      const chunk = await load(index.chunks[number].file);
      const found = Object.hasOwn(chunk, key)
        ? key
        : Object.keys(chunk).find((whole) => whole.startsWith(key));
      if (found !== undefined) return { key: found, entries: chunk[found] };
    }
    return null;
  }

  const section = (id, name, ...children) =>
    element("section", { id }, element("h2", { text: name }), ...children);
  const folded = (id, name, ...children) =>
    element("details", { id }, element("summary", { text: name }), ...children);
  const text = (content, name = "p", className = "caption") =>
    element(name, { class: className, text: content });
  const pre = (content, id = null) => element("pre", { id, tabindex: "0", text: content });
  function table(columns, rows, caption) {
    const made = element("div");
    grid(made, { caption, columns, rows }, { page: 200 });
    return made;
  }

  function head(key, entry, entries) {
    const fact = (name, ...value) => element("li", {}, `${name} `, element("b", {}, ...value));
    const glyph = element("span", {
      style: `color:${entry.glyph.color}`,
      "aria-hidden": "true",
      text: entry.glyph.character,
    });
    const select = element(
      "select",
      {
        id: "environment",
        "aria-label": "environment",
        onchange: () => {
          place.write({ env: select.value });
          open();
        },
      },
      ...entries.map((one) =>
        element("option", { value: one.env, selected: one === entry, text: one.where || one.env }),
      ),
    );
    const figures = HEADLINES.filter((name) => entry.results[name]).map((name) => {
      const { text: shown, interval, mark } = entry.results[name];
      return element(
        "li",
        { title: mark },
        element("b", { class: mark && "marked", text: shown }),
        ` ${index.metrics[name].title}`,
        element("span", { class: "sub", text: interval }),
      );
    });
    const bottleneck = entry.bound ? ` · bottleneck: ${entry.bound}` : "";
    const history = new URLSearchParams({ cell: key, on: index.hardware }); // other machines have the same cell
    return element(
      "div",
      {},
      element(
        "ul",
        { class: "facts" },
        ...Object.entries(entry.about).map(([name, value]) => fact(name, String(value))),
        fact("mode", glyph, ` ${entry.mode}`),
        fact("status", entry.status),
      ),
      element(
        "p",
        { class: "controls" },
        entries.length > 1 ? select : entry.where || index.hardware,
      ),
      entry.reason && text(entry.reason, "p", entry.status === "ok" ? "caption" : "note"),
      entry.disturbance &&
        text(
          `~ measured on a disturbed machine: ${entry.disturbance}. Intervals include what the disturbance may change.`,
        ),
      element("ul", { class: "tally" }, ...figures),
      element(
        "p",
        { class: "caption" },
        `key ${key.slice(0, 12)} · trials used: ${entry.count}${bottleneck} · `,
        element("a", {
          href: `speedups.html#${new URLSearchParams(entry.labels)}`,
          text: "other modes",
        }),
        " · ",
        element("a", { href: `../history.html#${history}`, text: "its history" }),
        " · ",
        element("a", { href: "#cell=", text: "all cells" }),
      ),
    );
  }

  /** Return the function from the position of a trial to its name; the data counts from 0. */
  const labels =
    ({ trials }) =>
    (position) => {
      const { round, attempt } = trials[position];
      const name = `round ${round + 1}`;
      return attempt ? `${name}, try ${attempt + 1}` : name;
    };

  /** Show what is known about the trials that are not ok. */
  function errors(entry) {
    const children = entry.errors.flatMap((error) => {
      const names = error.trials.map(labels(entry)).join(", ");
      const phase = error.phase ? ` · last phase ${error.phase}` : "";
      const status = element("span", { class: "status", text: error.status });
      return [
        element("h3", {}, status, ` ${names}${phase}`),
        element("p", { text: error.reason || "no reason recorded" }),
        error.traceback && pre(error.traceback),
        error.log && folded(null, "end of the process's log", pre(error.log)),
      ];
    });
    return section("errors", "Trials that are not ok", ...children);
  }

  const notTraced = (entry) => text(`This cell was not traced: ${entry.not_traced}.`);

  /** Show the command that measures the cell again. */
  function again({ command }) {
    const title = "Run it again";
    if (!command) {
      const why =
        "No command to show: the sweep was imported, or did not record how to run its cells. Review the parameters below.";
      return section("again", title, text(why, "p", "note"));
    }
    const what = "This command measures the same cell (with the same key) under the same protocol.";
    const button = element("button", {
      type: "button",
      class: "quiet",
      text: "copy",
      onclick: () => copy(command, button),
    });
    return section("again", title, text(what), pre(command, "command"), button);
  }

  function kernels({ calls, kernels_in_graphs: inGraphs, top }) {
    const ofCalls = calls ? ` of ${number(calls, "call")}` : "";
    const line = `The kernels with the most GPU time in a profiled pass${ofCalls}. In CUDA graphs: ${number(inGraphs || 0, "kernel")} per call.`;
    const columns = [
      { title: "kernel", wide: true },
      { title: "per call (ms)", numeric: true },
      { title: "GPU time (%)", numeric: true },
      { title: "launches per call", numeric: true },
    ];
    const rows = top.map(({ name, ms, share, count }) => [name, ms, 100 * share, count]);
    return section(
      "kernels",
      "Kernels",
      text(line),
      table(columns, rows, "Kernels with the most GPU time"),
    );
  }

  /** Show the facts that any trial has: one row per fact, one column per trial. */
  function trials(entry, facts) {
    const shown = (value, name) => {
      if (typeof value === "boolean") return value ? "yes" : "no";
      const isBytes = typeof value === "number" && name.endsWith("_bytes");
      if (isBytes) return { text: bytes(value), value };
      const isWide = typeof value === "string" && value.length > 30;
      if (isWide) return { text: `${value.slice(0, 26)}…`, value, hint: value };
      return value;
    };
    const rows = facts.map(([name, values]) => [
      name,
      ...values.map((value) => shown(value, name)),
    ]);
    const columns = [
      { title: "fact" },
      ...entry.trials.map((_, position) => ({ title: labels(entry)(position), numeric: true })),
    ];
    return section("trials", "Trials side by side", table(columns, rows, "Trials side by side"));
  }

  function metrics(entry) {
    const columns = [
      { title: "metric" },
      { title: "value", numeric: true },
      { title: "95 % interval" },
      { title: "meaning", wide: true },
    ];
    const rows = Object.entries(entry.results).map(([name, result]) => {
      const { value, text: shown, interval, mark } = result;
      const { title: metric, help } = index.metrics[name];
      const cell = { text: shown, value };
      if (mark) Object.assign(cell, { tone: "marked", hint: mark });
      return [metric, cell, interval ?? "", help];
    });
    return section("metrics", "All metrics", table(columns, rows, "All metrics of this cell"));
  }

  /** Show the facts that are long texts: each different one of the trials. */
  function more(facts) {
    const list = element("dl");
    for (const [name, values] of facts) {
      list.append(text(name, "dt"));
      const known = new Set(values.filter((value) => value !== null));
      for (const value of known) list.append(text(String(value), "dd", "reason"));
    }
    return section("more", "Other texts", list);
  }

  function parameters(entry) {
    const rows = Object.entries(entry.params).map(([name, value]) => [
      name,
      typeof value === "string" ? value : JSON.stringify(value),
    ]);
    return folded(
      "parameters",
      `All ${rows.length} parameters of the cell`,
      table(
        [{ title: "parameter" }, { title: "value", wide: true }],
        rows,
        "Parameters of the cell",
      ),
    );
  }

  function show(key, entries, asked) {
    const entry = entries.find((one) => one.env === asked) || entries[0];
    heading.textContent = entry.name;
    document.title = `${entry.name} · ${title}`;
    const figures = entry.timers.length ? element("div") : null;
    const times = entry.explained ? element("div") : null;
    const isLong = ([, values]) =>
      values.some((value) => typeof value === "string" && value.length > LONG);
    const facts = Object.entries(entry.facts);
    const texts = facts.filter(isLong);
    const parts = [
      head(key, entry, entries),
      entry.errors.length && errors(entry),
      times && section("explained", "Where the time goes", times),
      !times && entry.results.latency_ms && notTraced(entry),
      figures && section("samples", "Raw samples", figures),
      again(entry),
      entry.profile && kernels(entry.profile),
      trials(
        entry,
        facts.filter((fact) => !isLong(fact)),
      ),
      Object.keys(entry.results).length && metrics(entry),
      texts.length && more(texts),
      parameters(entry),
    ];
    target.replaceChildren(...parts.filter(Boolean));
    if (times) explained(times, key, entry);
    if (figures) samples(figures, entry.timers, labels(entry));
    target.dataset.cell = key;
  }

  let latest = 0;
  async function open() {
    const turn = (latest += 1);
    const { cell: key, env } = place.read();
    document.getElementById("all").hidden = Boolean(key);
    heading.textContent = "Cells";
    try {
      if (!key) {
        document.title = title;
        target.replaceChildren();
        delete target.dataset.cell;
        if (!list.hasChildNodes()) linked(list, await load(root.dataset.list));
        return;
      }
      index = index || (await load(root.dataset.index));
      const found = await find(key);
      if (turn !== latest) return; // another cell was opened meanwhile
      if (found) {
        show(found.key, found.entries, env);
        return;
      }
      target.replaceChildren(
        text(
          `This sweep has no cell with the key ${key}. Its trials may have been recorded after the site was written.`,
          "p",
          "note",
        ),
        element("a", { href: "#cell=", text: "all cells" }),
      );
      target.dataset.cell = "";
    } catch (error) {
      complain(target, error);
    }
  }

  window.addEventListener("hashchange", async () => {
    if (location.hash && !location.hash.includes("=")) return; // an anchor of this page
    await open();
    window.scrollTo(0, 0);
    heading.tabIndex = -1; // so that screen readers and Tab start at the new cell
    heading.focus({ preventScroll: true });
  });
  await open();
});
