"use strict";
// The cell that the page's address names (#cell=KEY, &env=ENVIRONMENT where there are several), or the list of all.
document.addEventListener("DOMContentLoaded", async () => {
  const { load, grid, element, complain, copy, place, samples } = window.effbench;
  const root = document.getElementById("cells");
  if (!root) return;
  const target = document.getElementById("cell");
  const list = document.getElementById("list");
  const heading = document.querySelector("h1");
  const title = document.title;
  let index = null;

  const digits = (value) => String(Number(value.toPrecision(4)));
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = 0;
    while (Math.abs(value) >= 1024 && power < 4) { value /= 1024; power += 1; }
    return `${power ? digits(Number(value.toPrecision(3))) : value} ${units[power]}`;
  };
  const glyph = ([color, character]) => element("span", { class: "glyph", style: `color:${color}`, "aria-hidden": "true", text: character });
  const address = (key, env, several) => `#cell=${encodeURIComponent(key)}${several ? `&env=${encodeURIComponent(env)}` : ""}`;

  /** [key, entries] of the cell whose key begins so; null where there is none. Files hold keys in ascending order. */
  async function find(key) {
    let at = -1;
    index.chunks.forEach(([first], number) => { if (first.slice(0, key.length) <= key) at = number; });
    for (const number of [at, at - 1]) {
      if (number < 0) continue;
      const chunk = await load(index.chunks[number][1]);
      const found = Object.hasOwn(chunk, key) ? key : Object.keys(chunk).find((one) => one.startsWith(key));
      if (found !== undefined) return [found, chunk[found]];
    }
    return null;
  }

  const section = (id, name, ...children) => element("section", { id }, element("h2", { text: name }), ...children);
  function table(columns, rows, caption, order) {
    const made = element("div");
    grid(made, { caption, columns, rows, order }, { page: 200 });
    return made;
  }

  function head(key, entry, entries) {
    const ok = entry.status === "ok";
    const lines = [element("ul", { class: "facts" },
      ...entry.facts.map(([name, value]) => element("li", {}, `${name} `, element("b", { text: String(value) }))),
      element("li", {}, "mode ", element("b", {}, glyph(entry.glyph), ` ${entry.mode}`)),
      element("li", {}, "status ", element("b", { class: ok ? null : "status", text: entry.status })))];
    if (entries.length > 1) {
      const select = element("select", { id: "environment", onchange: () => { place.write({ env: select.value }); open(); } },
        ...entries.map((one) => element("option", { value: one.env, selected: one === entry, text: environment(one.env) })));
      lines.push(element("p", { class: "controls" }, element("label", { for: "environment", text: "environment" }), select));
    } else {
      lines.push(element("p", { class: "caption", text: environment(entry.env) }));
    }
    if (entry.reason) lines.push(element("p", { class: ok ? "caption" : "note", text: entry.reason }));
    const shown = ["latency_ms", "period_ms", "speedup", "throughput_per_s", "compile_cold_s", "peak_reserved_bytes"].filter((name) => entry.results[name]);
    if (shown.length) {
      lines.push(element("ul", { class: "tally" }, ...shown.map((name) => {
        const [, text, interval] = entry.results[name];
        return element("li", {}, element("b", { text }), ` ${index.metrics[name][0]}`, interval ? element("span", { class: "sub", text: interval }) : null);
      })));
    }
    lines.push(element("p", { class: "caption" }, `key ${key.slice(0, 12)} · ${entry.count} ${entry.count === 1 ? "trial counts" : "trials count"}${entry.bound ? ` · bound by ${entry.bound}` : ""} · `,
      element("a", { href: `../history.html#cell=${key}`, text: "its history" }), " · ", element("a", { href: "#cell=", text: "all cells" })));
    return element("div", {}, ...lines);
  }

  function environment(id) {
    const [text, python, folder] = index.environments[id] || [id];
    return [text, python && `interpreter ${python}`, folder && `folder ${folder}`].filter(Boolean).join(" · ");
  }

  function neighbours(entry, several) {
    const rows = [];
    for (const [what, found] of [["mode", entry.modes], ["bs", entry.sizes]]) {
      if (!found.length) continue;
      rows.push(element("h3", { text: what === "mode" ? "The same in other modes" : "Other batch sizes in this mode" }),
        table([{ title: what, numeric: what === "bs" }, { title: "status" }, { title: "latency", numeric: true }, { title: `speedup against ${index.baseline}`, numeric: true }],
          found.map(([mode, look, bs, key, env, status, latency, speedup]) => [
            what === "mode" ? { t: mode, g: look, h: address(key, env, several) } : { t: String(bs), v: bs, h: address(key, env, several) },
            status === "ok" ? "ok" : { t: status, c: "status" }, latency || { t: "—" }, speedup || { t: "—" }]),
          what === "mode" ? "The same cell in other modes" : "The same mode at other batch sizes"));
    }
    return rows.length ? section("neighbours", "Beside it", ...rows) : null;
  }

  function metrics(entry) {
    const rows = Object.entries(entry.results).map(([name, [value, text, interval]]) => [index.metrics[name][0], { t: text, v: value }, interval || "", index.metrics[name][1]]);
    return rows.length ? section("metrics", "Every figure", table([{ title: "metric" }, { title: "value", numeric: true }, { title: "95 % interval" }, { title: "what it is", wide: true }], rows, "Every metric of this cell")) : null;
  }

  const labels = (entry) => (trial) => { const [round, attempt] = entry.trials[trial]; return `round ${round + 1}${attempt ? `, try ${attempt + 1}` : ""}`; }; // stored from 0

  /** A long text cut short; all of it on hover, and when the table is copied. */
  const shortened = (text) => (text.length > 24 ? { t: `${text.slice(0, 20)}…`, v: text, d: text } : text);

  /** Facts of all trials; a column for each trial while they fit, else a row for each. */
  function trials(entry) {
    const label = labels(entry);
    const value = (found, unit) => {
      if (found === null || found === undefined) return { t: "—" };
      if (typeof found === "boolean") return found ? "yes" : "no";
      if (typeof found !== "number") return shortened(String(found));
      return { t: unit === "bytes" ? bytes(found) : Number.isInteger(found) ? String(found) : digits(found), v: found };
    };
    const heading = (fact) => (fact.unit && fact.unit !== "bytes" ? `${fact.name} (${fact.unit})` : fact.name);
    const wide = entry.trials.length > 12;
    function side(facts, caption) {
      const present = facts.filter((fact) => fact.values.some((found) => found !== null && found !== undefined));
      const parts = present.some((fact) => fact.part);
      const columns = wide
        ? [{ title: "trial" }, ...present.map((fact) => ({ title: heading(fact), numeric: fact.values.some((one) => typeof one === "number") }))]
        : [...(parts ? [{ title: "of", filter: true }] : []), { title: "fact" }, ...entry.trials.map((_, trial) => ({ title: label(trial), numeric: true }))];
      const rows = wide
        ? entry.trials.map((_, trial) => [label(trial), ...present.map((fact) => value(fact.values[trial], fact.unit))])
        : present.map((fact) => [...(parts ? [fact.part] : []), heading(fact), ...fact.values.map((found) => value(found, fact.unit))]);
      return table(columns, rows, caption);
    }
    const facts = index.facts.map(([name, unit, part], column) => ({ name, unit, part, values: entry.trials.map((trial) => trial[column]) }));
    const further = Object.entries(entry.short).map(([name, values]) => ({ name, unit: "", part: "", values }));
    const made = section("trials", "Trials side by side", side(facts.slice(2), "Trials side by side"));
    if (further.length) made.append(element("details", {}, element("summary", { text: `${further.length} further facts of the trials` }), side(further, "Further facts of the trials")));
    return made;
  }

  function kernels(entry) {
    if (!entry.kernels) return null;
    const { passes, calls, in_graphs: inGraphs, rows } = entry.kernels;
    const line = `Mean over the profiled passes of ${passes} ${passes === 1 ? "trial" : "trials"}${calls ? `, of ${calls} calls each` : ""}; the ten largest of each pass. ${inGraphs ? `${inGraphs} kernels of a call run inside CUDA graphs.` : "No kernel runs inside a CUDA graph."}`;
    return section("kernels", "Kernels", element("p", { class: "caption", text: line }),
      table([{ title: "kernel", wide: true }, { title: "a call (ms)", numeric: true }, { title: "share", numeric: true }, { title: "times a call", numeric: true }, { title: "passes", numeric: true }],
        rows.map(([name, count, ms, share, found]) => [name, { t: digits(ms), v: ms }, { t: `${digits(100 * share)} %`, v: share }, { t: digits(count), v: count }, found]), "Kernels with the largest share of GPU time"));
  }

  function errors(entry) {
    if (!entry.errors.length) return null;
    const label = labels(entry);
    return section("errors", "What went wrong", ...entry.errors.flatMap((one) => [
      element("h3", {}, element("span", { class: "status", text: one.status }), ` ${one.trials.map(label).join(", ")}${one.phase ? ` · last phase ${one.phase}` : ""}`),
      element("p", { text: one.reason || "no reason recorded" }),
      one.traceback ? element("pre", { tabindex: "0", text: one.traceback }) : null,
      one.log ? element("details", {}, element("summary", { text: "the end of the process's log" }), element("pre", { tabindex: "0", text: one.log })) : null,
    ]));
  }

  function more(entry) {
    const facts = Object.entries(entry.long).flatMap(([name, text]) => [element("dt", { text: name }), ...(Array.isArray(text) ? text : [text]).map((one) => element("dd", { class: "reason", text: one }))]);
    const files = entry.artifacts.map(([name, link, why]) => element("li", {}, link ? element("a", { href: link, text: name }) : `${name} (${why})`));
    if (!facts.length && !files.length) return null;
    return section("more", "More of it", facts.length ? element("dl", {}, ...facts) : null, files.length ? element("h3", { text: "Artifacts" }) : null, files.length ? element("ul", {}, ...files) : null);
  }

  function again(entry) {
    if (!entry.command) return section("again", "Run it again", element("p", { class: "note", text: `No command says this cell: ${entry.why_not}.` }));
    const button = element("button", { type: "button", class: "quiet", text: "copy", onclick: () => copy(entry.command, button) });
    return section("again", "Run it again", element("p", { class: "caption", text: "This command plans the same cell (of the same key), measured by the same protocol." }), element("pre", { id: "command", tabindex: "0", text: entry.command }), button);
  }

  function parameters(entry) {
    const rows = [];
    const walk = (value, path) => {
      if (Array.isArray(value) && value.length && value.every((one) => one && typeof one === "object" && "name" in one)) value.forEach((one) => { const { name, ...rest } = one; walk(rest, `${path}.${name}`); });
      else if (value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) for (const [key, inner] of Object.entries(value)) walk(inner, path ? `${path}.${key}` : key);
      else rows.push([path, typeof value === "string" ? value : JSON.stringify(value)]);
    };
    walk(entry.params, "");
    return element("details", { id: "parameters" }, element("summary", { text: `All ${rows.length} parameters of the cell` }), table([{ title: "parameter" }, { title: "value", wide: true }], rows, "Parameters of the cell"));
  }

  function show(key, entries, asked) {
    const entry = entries.find((one) => one.env === asked) || entries[0];
    heading.textContent = entry.name;
    document.title = `${entry.name} · ${title}`;
    const figures = element("div");
    const measured = Object.keys(entry.samples).length > 0;
    const parts = [head(key, entry, entries), errors(entry), measured ? section("samples", "Raw samples", figures) : null,
      again(entry), neighbours(entry, entries.length > 1), kernels(entry), trials(entry), metrics(entry), more(entry), parameters(entry)];
    target.replaceChildren(...parts.filter(Boolean));
    if (measured) samples.show(figures, entry.samples, labels(entry));
    target.dataset.cell = key;
  }

  let latest = 0;
  async function open() {
    const turn = latest += 1;
    const { cell: key, env } = place.read();
    document.getElementById("all").hidden = Boolean(key);
    if (!key) {
      heading.textContent = "Cells";
      document.title = title;
      target.replaceChildren();
      delete target.dataset.cell;
      if (!list.dataset.opened) {
        list.dataset.opened = "true";
        try { grid(list, await load(root.dataset.list)); } catch (error) { complain(list, error); }
      }
      return;
    }
    try {
      index = index || await load(root.dataset.index);
      const found = await find(key);
      if (turn !== latest) return; // another was asked for meanwhile
      if (found) show(...found, env);
      else {
        heading.textContent = "Cells";
        target.replaceChildren(element("p", { class: "note", text: `No cell of this sweep has the key ${key}, or none of its trials was recorded when this site was written.` }), element("p", {}, element("a", { href: "#cell=", text: "all cells" })));
        target.dataset.cell = "";
      }
    } catch (error) { complain(target, error); }
  }

  window.addEventListener("hashchange", async () => {
    if (location.hash && !location.hash.includes("=")) return; // a place in this page
    await open();
    window.scrollTo(0, 0);
    heading.tabIndex = -1; // so that a screen reader and the next Tab begin at the new cell
    heading.focus({ preventScroll: true });
  });
  await open();
});
