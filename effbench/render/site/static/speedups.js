"use strict";
// The speedup table. The URL captures metric, modes, filters, search and sorting; unknown values are ignored.
document.addEventListener("DOMContentLoaded", () => {
  const { load, grid, complain, place } = window.effbench;
  const metric = document.getElementById("metric");
  const target = document.getElementById("grid");
  const buttons = [...document.querySelectorAll("#table .legend button")];
  const LONGEST = 200; // characters of a search
  const OWN = new Set(["metric", "search", "sort", "hide"]);
  let hidden = new Set();
  let shown = null;

  /** Return the name of a column in the URL: the mode, which is the same for every metric, or the title. */
  const key = (column) => column.mode || column.title;
  const parameter = (column) => (OWN.has(column.title) ? `column.${column.title}` : column.title);

  function columns() {
    shown.grid.columns.forEach((column, index) => {
      if (column.mode) shown.visible(index, !hidden.has(column.mode));
    });
    shown.draw();
  }

  /** Set the controls from the URL. */
  function controls() {
    metric.value = place.read().metric;
    if (!metric.value) metric.selectedIndex = 0;
    const wanted = new Set(place.all("hide"));
    hidden = new Set(
      buttons.map((button) => button.dataset.mode).filter((name) => wanted.has(name)),
    );
    for (const button of buttons)
      button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.mode)));
  }

  /** Return the table's state from the URL, by numbers of columns. */
  function stateOf(source) {
    const values = place.read();
    const filters = new Map();
    source.columns.forEach((column, index) => {
      const value = Object.hasOwn(values, parameter(column)) ? values[parameter(column)] : "";
      if (column.filter && value) filters.set(index, value);
    });
    const [, direction, name] = (values.sort || "").match(/^(asc|desc):(.*)$/s) || [];
    const by = source.columns.findIndex((column) => key(column) === name);
    return {
      filters,
      order: by < 0 ? null : { column: by, direction },
      search: (values.search || "").slice(0, LONGEST),
    };
  }

  /** Write the table's state to the URL. */
  function remember(source, { filters, search, order }) {
    const changed = {
      search: search.slice(0, LONGEST),
      sort: order ? `${order.direction}:${key(source.columns[order.column])}` : "",
    };
    source.columns.forEach((column, index) => {
      if (column.filter) changed[parameter(column)] = filters.get(index) || "";
    });
    place.write(changed);
  }

  let turn = 0;
  async function open() {
    const request = (turn += 1);
    const option = metric.selectedOptions[0];
    document.getElementById("help").textContent = option.dataset.help;
    try {
      const source = await load(option.dataset.src);
      if (request !== turn) return; // another metric was chosen meanwhile
      shown = grid(target, source, {
        state: stateOf(source),
        changed: (state) => remember(source, state),
      });
    } catch (error) {
      complain(target, error);
      return;
    }
    columns();
    target.dataset.metric = metric.value;
  }

  for (const button of buttons) {
    button.addEventListener("click", () => {
      const on = hidden.has(button.dataset.mode);
      if (on) hidden.delete(button.dataset.mode);
      else hidden.add(button.dataset.mode);
      button.setAttribute("aria-pressed", String(on));
      place.write({ hide: [...hidden] });
      if (shown) columns();
    });
  }
  metric.addEventListener("change", () => {
    place.write({ metric: metric.value });
    open();
  });
  window.addEventListener("hashchange", () => {
    if (location.hash && !location.hash.includes("=")) return; // an anchor of this page
    controls();
    open();
  });
  controls();
  open();
});
