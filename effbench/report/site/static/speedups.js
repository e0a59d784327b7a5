"use strict";
// The metric switch, the modes and the status of the speedup table; the place in the page's address.
document.addEventListener("DOMContentLoaded", async () => {
  const { load, grid, complain, place } = window.effbench;
  const metric = document.getElementById("metric");
  const status = document.getElementById("status");
  const target = document.getElementById("grid");
  const buttons = [...document.querySelectorAll("#table .legend button")];
  const hidden = new Set();
  let shown = null;

  const isStatus = (cell, wanted) => cell && typeof cell === "object" && (wanted === "ok" ? cell.v !== undefined : cell.t === wanted);
  const keep = (row) => !status || status.value === "" || row.some((cell) => isStatus(cell, status.value));
  const filters = () => Object.fromEntries([...target.querySelectorAll("select[data-column]")].map((one) => [one.dataset.column, one.value]));

  function columns() {
    shown.grid.columns.forEach((column, index) => {
      if (column.mode) shown.table.column(index).visible(!hidden.has(column.mode), false);
    });
    shown.table.columns.adjust();
  }

  async function open() {
    const option = metric.selectedOptions[0];
    document.getElementById("help").textContent = option.dataset.help;
    const before = filters();
    try {
      shown = grid(target, await load(option.dataset.src), { keep });
    } catch (error) {
      complain(target, error);
      return;
    }
    for (const select of target.querySelectorAll("select[data-column]")) {
      if (before[select.dataset.column]) { select.value = before[select.dataset.column]; select.dispatchEvent(new Event("change")); }
    }
    columns();
    target.dataset.metric = metric.value;
  }

  for (const button of buttons) {
    button.addEventListener("click", () => {
      const on = hidden.has(button.dataset.column);
      if (on) hidden.delete(button.dataset.column); else hidden.add(button.dataset.column);
      button.setAttribute("aria-pressed", String(on));
      columns();
    });
  }
  metric.addEventListener("change", () => { place.write({ metric: metric.value }); open(); });
  if (status) status.addEventListener("change", () => shown.table.draw());
  const asked = place.read().metric;
  if (asked && [...metric.options].some((option) => option.value === asked)) metric.value = asked;
  await open();
});
