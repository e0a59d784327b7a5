"use strict";
// Tables: sorted, filtered and paged by DataTables; cells are built here, as texts and never as HTML.
(() => {
  const { load, element, complain } = window.effbench;
  const text = (cell) => (cell === null || cell === undefined ? "" : typeof cell === "object" ? cell.t : String(cell));
  const value = (cell) => (cell !== null && typeof cell === "object" ? (cell.v === undefined ? cell.t : cell.v) : cell);

  const digits = (value, many) => (Number.isInteger(value) && Math.abs(value) < 1e9 ? String(value) : String(Number(value.toPrecision(many))));

  /** The rows of `grid` as cells: texts by their numbers (`of`), figures with so many digits (`digits`), see grid.py. */
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

  const escaped = (item) => item.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  /** What can be sorted: numbers as numbers, nothing last. */
  const sortable = (cell, numeric) => {
    const found = value(cell);
    if (!numeric) return String(found === null || found === undefined ? "" : found);
    return typeof found === "number" ? found : null;
  };

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
   * Show `grid` (see grid.py) in `place`. Returns { table, columns, rows() } where rows() are those that are shown.
   * options.keep: a function of a row that says whether it is shown; options.state: { filters: Map of a column's number
   * to its value, search, order } to begin with, what does not fit is left out; options.changed: given the same whenever
   * the reader has changed it.
   */
  function show(place, source, options = {}) {
    const grid = { ...source, rows: decoded(source) };
    const given = options.state || {};
    const table = element("table", { class: `grid ${options.class || ""}` });
    table.append(element("caption", { class: "off", text: grid.caption }));
    const body = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": grid.caption }, table);
    const filters = element("div", { class: "filters" });
    const tools = element("div", { class: "tools" });
    place.replaceChildren(element("div", { class: "bar-of-table" }, filters, tools), body);

    const columns = grid.columns.map((column, index) => ({
      className: [column.numeric ? "num" : "", column.wide ? "reason" : ""].join(" ").trim(),
      data: null, type: column.numeric ? "num" : "string",
      // DataTables reads texts as HTML: it is given none to display (createdCell fills the cell), and escaped ones to search
      render: (row, type) => {
        if (type === "sort" || type === "type") return sortable(row[index], column.numeric);
        return type === "filter" ? escaped(text(row[index])) : "";
      },
      createdCell: (td, _, row) => fill(td, row[index]),
    }));
    const head = element("tr");
    for (const column of grid.columns) head.append(element("th", { scope: "col", title: column.help, class: column.numeric ? "num" : null, text: column.title }));
    table.append(element("thead", {}, head));
    const long = grid.rows.length > 25;
    const paged = grid.rows.length > (options.page || 100);
    const made = new DataTable(table, {
      data: grid.rows, columns, order: given.order && given.order.length ? given.order : grid.order || [], orderMulti: true, autoWidth: false, deferRender: true,
      paging: paged, pageLength: options.page || 100, lengthChange: false, info: long, searching: true,
      layout: { topStart: null, topEnd: null, bottomStart: long ? "info" : null, bottomEnd: paged ? "paging" : null },
      language: { emptyTable: "Nothing here.", zeroRecords: "No row fits the filters." },
    });

    const chosen = new Map(); // column -> value
    made.search.fixed("chosen", (_, row) => {
      for (const [index, wanted] of chosen) if (text(row[index]) !== wanted) return false;
      return options.keep ? options.keep(row) : true;
    });
    const state = () => ({ filters: chosen, search: made.search(), order: made.order().map(([index, direction]) => [index, direction]) });
    const tell = () => { if (options.changed) options.changed(state()); };
    grid.columns.forEach((column, index) => {
      if (!column.filter) return;
      const values = [...new Set(grid.rows.map((row) => text(row[index])))];
      if (values.length < 2) return;
      const select = element("select", { "data-column": column.title }, element("option", { value: "", text: "all" }), ...values.map((name) => element("option", { value: name, text: name })));
      const wanted = given.filters && given.filters.get(index);
      if (wanted && values.includes(wanted)) { select.value = wanted; chosen.set(index, wanted); }
      select.addEventListener("change", () => {
        if (select.value === "") chosen.delete(index); else chosen.set(index, select.value);
        made.draw();
        tell();
      });
      filters.append(element("label", {}, `${column.title} `, select));
    });
    if (long) {
      const search = element("input", { type: "search", placeholder: "any text" });
      if (given.search) { search.value = given.search; made.search(given.search); }
      search.addEventListener("input", () => { made.search(search.value).draw(); tell(); });
      filters.append(element("label", {}, "search ", search));
    }
    if (options.keep || chosen.size || given.search) made.draw(); // the rows stood before they could be chosen
    made.on("order", tell);
    const rows = () => made.rows({ search: "applied", order: "applied" }).data().toArray();
    const visible = () => grid.columns.map((_, index) => index).filter((index) => made.column(index).visible());
    const picked = (write) => { const shown = visible(); return write(shown.map((index) => grid.columns[index]), rows().map((row) => shown.map((index) => row[index]))); };
    for (const [name, write] of [["Markdown", markdown], ["CSV", csv]]) {
      const button = element("button", { type: "button", class: "quiet", "data-copy": name, text: `copy ${name}` });
      button.addEventListener("click", () => copy(picked(write), button));
      tools.append(button);
    }
    return { table: made, grid, rows, markdown: () => picked(markdown), csv: () => picked(csv) };
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
