"use strict";
// Tables that a reader sorts, filters, pages and copies; cells are built as texts, never as HTML.
(() => {
  const { load, element, complain } = window.effbench;
  const text = (cell) => (cell === null || cell === undefined ? "" : typeof cell === "object" ? cell.t : String(cell));
  const value = (cell) => (cell !== null && typeof cell === "object" ? (cell.v === undefined ? cell.t : cell.v) : cell);

  const digits = (value, many) => (Number.isInteger(value) && Math.abs(value) < 1e9 ? String(value) : String(Number(value.toPrecision(many))));

  /** The rows of `grid` as cells: texts by their numbers (`of`), figures with so many digits (`digits`), see page.py. */
  function decoded(grid) {
    const cell = grid.columns.map((column) => {
      if (column.of) return (item) => column.of[item];
      if (column.digits) return (item) => (item === null ? { t: "—" } : { t: digits(item, column.digits), v: item });
      return (item) => item;
    });
    return grid.rows.map((row) => row.map((item, index) => cell[index](item)));
  }

  /** Fill a table cell. */
  function fill(td, cell) {
    td.replaceChildren();
    if (cell === null || typeof cell !== "object") { td.textContent = text(cell); return; }
    const inner = [];
    if (cell.g) inner.push(element("span", { class: "glyph", style: `color:${cell.g[0]}`, "aria-hidden": "true", text: cell.g[1] }));
    inner.push(cell.t);
    const main = cell.h ? element("a", { href: cell.h, title: cell.d, class: cell.g ? "mode" : null }, ...inner) : element("span", { title: cell.d, class: cell.g ? "mode" : null }, ...inner);
    td.append(main);
    if (cell.s) td.append(element("span", { class: "sub", text: cell.s }));
    if (cell.c) td.classList.add(...cell.c.split(" "));
  }

  /** What a column is sorted by; nothing comes last in both directions. */
  const sortable = (cell, numeric) => {
    const found = value(cell);
    if (numeric) return typeof found === "number" ? found : null;
    return found === null || found === undefined || found === "" ? null : String(found).toLowerCase();
  };
  function compare(a, b) {
    if (a === null || b === null) return 0;
    return a < b ? -1 : a > b ? 1 : 0;
  }

  function csv(columns, rows) {
    const quote = (item) => (/[",\n\r]/.test(item) ? `"${item.replace(/"/g, '""')}"` : item);
    const plain = (cell) => { const found = value(cell); return quote(found === null || found === undefined ? "" : String(found)); };
    return [columns.map((column) => quote(column.title)), ...rows.map((row) => row.map(plain))].map((line) => line.join(",")).join("\n") + "\n";
  }

  function markdown(columns, rows) {
    const safe = (item) => item.replace(/\s+/g, " ").replace(/\\/g, "\\\\").replace(/\|/g, "\\|").replace(/</g, "&lt;").replace(/\*/g, "\\*");
    const line = (items) => `| ${items.join(" | ")} |`;
    const rule = columns.map((column) => (column.numeric ? "---:" : "---"));
    const full = (cell) => (cell && cell.s ? `${text(cell)} (${cell.s})` : text(cell));
    return [line(columns.map((column) => safe(column.title))), line(rule), ...rows.map((row) => line(row.map((cell) => safe(full(cell)))))].join("\n") + "\n";
  }

  async function copy(content, button) {
    const said = button.textContent;
    let done = true;
    try {
      await navigator.clipboard.writeText(content);
    } catch {
      const area = element("textarea", { class: "off" });
      area.value = content;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.textContent = done ? "copied" : "the browser refused";
    setTimeout(() => { button.textContent = said; }, 1500);
  }

  /**
   * Show `source` (see grid_data in page.py) in `place`. Returns { grid, draw(), rows(), visible(column, shown), markdown(), csv() };
   * rows() are those that are shown, on all pages.
   * options.keep: a function of a row that says whether it is shown; options.state: { filters: Map of a column's number
   * to its value, search, order } to begin with, what does not fit is left out; options.changed: given the same whenever
   * the reader has changed it; options.page: rows of a page; options.class: of the table.
   */
  function show(place, source, options = {}) {
    const grid = { ...source, rows: decoded(source) };
    const given = options.state || {};
    const size = options.page || 100;
    const long = grid.rows.length > 25;
    const chosen = new Map(); // column -> value
    const hidden = new Set(); // columns
    let order = given.order && given.order.length ? given.order : grid.order || [];
    let words = [];
    let search = "";
    let page = 0;
    let shown = grid.rows;

    const body = element("tbody");
    const heads = grid.columns.map((column, index) => element("th", { scope: "col", title: column.help, class: column.numeric ? "num" : null, onclick: (event) => sortBy(index, event.shiftKey) },
      element("button", { type: "button", class: "sort", text: column.title })));
    const table = element("table", { class: `grid ${options.class || ""}` }, element("caption", { class: "off", text: grid.caption }), element("thead", {}, element("tr", {}, ...heads)), body);
    const filters = element("div", { class: "filters" });
    const tools = element("div", { class: "tools" });
    const info = element("span", { role: "status" });
    const pager = element("span", { class: "pages" });
    place.replaceChildren(element("div", { class: "bar-of-table" }, filters, tools),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": grid.caption }, table),
      ...(long ? [element("div", { class: "below-table" }, info, pager)] : []));

    const state = () => ({ filters: chosen, search, order });
    const tell = () => { if (options.changed) options.changed(state()); };
    const fits = (row) => {
      for (const [index, wanted] of chosen) if (text(row[index]) !== wanted) return false;
      if (options.keep && !options.keep(row)) return false;
      if (!words.length) return true;
      const whole = row.map(text).join("\n").toLowerCase();
      return words.every((word) => whole.includes(word));
    };

    /** A click sorts upwards, then downwards, then not; with Shift next to the columns that are sorted by already. */
    function sortBy(index, more) {
      const current = order.find(([column]) => column === index);
      const next = !current ? [[index, "asc"]] : current[1] === "asc" ? [[index, "desc"]] : [];
      order = more && current ? order.flatMap((one) => (one === current ? next : [one])) : more ? [...order, ...next] : next;
      draw();
      tell();
    }

    /** Choose and sort the rows anew, from the first page on. */
    function draw() {
      shown = grid.rows.filter(fits);
      const keys = order.filter(([index]) => grid.columns[index]).map(([index, direction]) => [new Map(shown.map((row) => [row, sortable(row[index], grid.columns[index].numeric)])), direction === "desc" ? -1 : 1]);
      if (keys.length) {
        shown.sort((one, other) => {
          for (const [key, sign] of keys) {
            const [a, b] = [key.get(one), key.get(other)];
            const found = (a === null) - (b === null) || sign * compare(a, b);
            if (found) return found;
          }
          return 0;
        });
      }
      heads.forEach((head, index) => {
        const own = order.find(([column]) => column === index);
        head.dataset.order = own ? own[1] : "";
        if (own && own === order[0]) head.setAttribute("aria-sort", own[1] === "desc" ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
      });
      turn(0);
    }

    /** Show a page of the rows. */
    function turn(number) {
      page = number;
      const rows = shown.slice(page * size, (page + 1) * size).map((row) => element("tr", {}, ...row.map((cell, index) => {
        const column = grid.columns[index];
        const td = element("td", { class: [column.numeric ? "num" : "", column.wide ? "reason" : ""].join(" ").trim() || null, hidden: hidden.has(index) });
        fill(td, cell);
        return td;
      })));
      if (!rows.length) rows.push(element("tr", {}, element("td", { colspan: grid.columns.length, text: grid.rows.length ? "No row fits the filters." : "Nothing here." })));
      body.replaceChildren(...rows);
      heads.forEach((head, index) => { head.hidden = hidden.has(index); });
      if (!long) return;
      const count = (many) => many.toLocaleString("en");
      info.textContent = `${shown.length ? `${count(page * size + 1)} to ${count(Math.min((page + 1) * size, shown.length))}` : "0"} of ${count(shown.length)} rows${shown.length < grid.rows.length ? ` (${count(grid.rows.length)} in all)` : ""}`;
      const last = Math.ceil(shown.length / size) - 1;
      const step = (to, name, label) => element("button", { type: "button", "aria-label": label, "aria-current": to === page && name !== "‹" && name !== "›" ? "page" : null, disabled: to < 0 || to > last, text: name, onclick: () => { turn(to); } });
      const near = [...new Set([0, page - 1, page, page + 1, last])].filter((one) => one >= 0 && one <= last);
      pager.replaceChildren(...(last < 1 ? [] : [step(page - 1, "‹", "previous page"), ...near.map((one) => step(one, String(one + 1), `page ${one + 1}`)), step(page + 1, "›", "next page")]));
    }

    grid.columns.forEach((column, index) => {
      if (!column.filter) return;
      const values = [...new Set(grid.rows.map((row) => text(row[index])))];
      if (values.length < 2) return;
      const select = element("select", { "data-column": column.title }, element("option", { value: "", text: "all" }), ...values.map((name) => element("option", { value: name, text: name })));
      const wanted = given.filters && given.filters.get(index);
      if (wanted && values.includes(wanted)) { select.value = wanted; chosen.set(index, wanted); }
      select.addEventListener("change", () => {
        if (select.value === "") chosen.delete(index); else chosen.set(index, select.value);
        draw();
        tell();
      });
      filters.append(element("label", {}, `${column.title} `, select));
    });
    if (long) {
      const input = element("input", { type: "search", placeholder: "any text" });
      const look = (wanted) => { search = wanted; words = wanted.toLowerCase().split(/\s+/).filter(Boolean); };
      if (given.search) { input.value = given.search; look(given.search); }
      input.addEventListener("input", () => { look(input.value); draw(); tell(); });
      filters.append(element("label", {}, "search ", input));
    }
    const picked = (write) => {
      const columns = grid.columns.map((_, index) => index).filter((index) => !hidden.has(index));
      return write(columns.map((index) => grid.columns[index]), shown.map((row) => columns.map((index) => row[index])));
    };
    for (const [name, write] of [["Markdown", markdown], ["CSV", csv]]) {
      const button = element("button", { type: "button", class: "quiet", "data-copy": name, text: `copy ${name}` });
      button.addEventListener("click", () => copy(picked(write), button));
      tools.append(button);
    }
    draw();
    const visible = (index, on) => { if (on) hidden.delete(index); else hidden.add(index); };
    return { grid, draw, visible, rows: () => shown, markdown: () => picked(markdown), csv: () => picked(csv) };
  }

  async function open(place) {
    if (place.dataset.opened) return;
    place.dataset.opened = "true";
    try { show(place, await load(place.dataset.src)); } catch (error) { complain(place, error); }
  }

  window.effbench.grid = show;
  window.effbench.copy = copy;
  document.addEventListener("DOMContentLoaded", () => {
    for (const place of document.querySelectorAll(".grid-place[data-src]")) {
      if (place.dataset.src === "") continue; // others say what it shows
      const closed = place.closest("details:not([open])");
      if (closed) closed.addEventListener("toggle", () => open(place), { once: true }); else open(place);
    }
  });
})();
