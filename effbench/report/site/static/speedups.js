"use strict";
// The speedup table: metric, modes, status, filters, search and sorting; all of it stands in the page's address, which
// is also what a table is opened from. What the address says and the page does not know is left out.
document.addEventListener("DOMContentLoaded", () => {
  const { load, grid, complain, place } = window.effbench;
  const metric = document.getElementById("metric");
  const status = document.getElementById("status");
  const target = document.getElementById("grid");
  const buttons = [...document.querySelectorAll("#table .legend button")];
  const LONGEST = 200; // characters of a search
  const OWN = new Set(["metric", "status", "search", "sort", "hide"]);
  let hidden = new Set();
  let shown = null;

  const isStatus = (cell, wanted) => cell && typeof cell === "object" && (wanted === "ok" ? cell.v !== undefined : cell.t === wanted);
  const keep = (row) => !status || status.value === "" || row.some((cell) => isStatus(cell, status.value));
  /** What a column is called in the address: a mode's name says the same under every metric. */
  const key = (column) => column.mode || column.title;
  const parameter = (column) => (OWN.has(column.title) ? `column.${column.title}` : column.title);
  const pick = (select, wanted, otherwise) => { select.value = [...select.options].some((option) => option.value === wanted) ? wanted : otherwise; };

  function columns() {
    shown.grid.columns.forEach((column, index) => {
      if (column.mode) shown.visible(index, !hidden.has(column.mode));
    });
    shown.draw();
  }

  /** The controls as the address has them. */
  function controls() {
    const values = place.read();
    pick(metric, values.metric, metric.options[0].value);
    if (status) pick(status, values.status, "");
    const wanted = new Set(place.all("hide"));
    hidden = new Set(buttons.map((button) => button.dataset.column).filter((name) => wanted.has(name)));
    for (const button of buttons) button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.column)));
  }

  /** The table's state as the address has it, by the numbers of its columns. */
  function stateOf(source) {
    const values = place.read();
    const filters = new Map();
    source.columns.forEach((column, index) => {
      const value = Object.hasOwn(values, parameter(column)) ? values[parameter(column)] : "";
      if (column.filter && value) filters.set(index, value);
    });
    const order = place.all("sort").map((one) => {
      const [, direction, name] = one.match(/^(asc|desc):(.*)$/s) || [];
      return [source.columns.findIndex((column) => key(column) === name), direction];
    }).filter(([index]) => index >= 0);
    return { filters, order, search: (values.search || "").slice(0, LONGEST) };
  }

  /** The address as the table has it. */
  function remember(source, state) {
    const changed = { search: state.search.slice(0, LONGEST), sort: state.order.map(([index, direction]) => (direction ? `${direction}:${key(source.columns[index])}` : "")) };
    source.columns.forEach((column, index) => { if (column.filter) changed[parameter(column)] = state.filters.get(index) || ""; });
    place.write(changed);
  }

  let turn = 0;
  async function open() {
    const own = (turn += 1);
    const option = metric.selectedOptions[0];
    document.getElementById("help").textContent = option.dataset.help;
    try {
      const source = await load(option.dataset.src);
      if (own !== turn) return; // another metric was chosen meanwhile
      shown = grid(target, source, { keep, state: stateOf(source), changed: (state) => remember(source, state) });
    } catch (error) {
      complain(target, error);
      return;
    }
    columns();
    target.dataset.metric = metric.value;
  }

  for (const button of buttons) {
    button.addEventListener("click", () => {
      const on = hidden.has(button.dataset.column);
      if (on) hidden.delete(button.dataset.column); else hidden.add(button.dataset.column);
      button.setAttribute("aria-pressed", String(on));
      place.write({ hide: [...hidden] });
      if (shown) columns();
    });
  }
  metric.addEventListener("change", () => { place.write({ metric: metric.value }); open(); });
  if (status) status.addEventListener("change", () => { place.write({ status: status.value }); if (shown) shown.draw(); });
  window.addEventListener("hashchange", () => {
    if (location.hash && !location.hash.includes("=")) return; // a place in this page
    controls();
    open();
  });
  controls();
  open();
});
