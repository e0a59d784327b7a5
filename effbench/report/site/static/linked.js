"use strict";
// Tables whose filters stand in the page's address (`#verdict=refuted&machine=…`), so that a view can be linked.
// `.linked-grid[data-src]`; a button with data-filter="COLUMN" and data-value sets one.
(() => {
  const { load, grid, complain, place } = window.effbench;
  const selects = (box) => [...box.querySelectorAll("select[data-column]")];

  /** Set the filters of `box` to what the address says. */
  function apply(box) {
    const wanted = place.read();
    for (const select of selects(box)) {
      const value = wanted[select.dataset.column] || "";
      const known = [...select.options].some((option) => option.value === value);
      if (!known || select.value === value) continue;
      select.value = value;
      select.dispatchEvent(new Event("change"));
    }
  }
  const press = (box) => {
    for (const button of document.querySelectorAll("button[data-filter]")) {
      const select = selects(box).find((one) => one.dataset.column === button.dataset.filter);
      if (select) button.setAttribute("aria-pressed", String(select.value === button.dataset.value));
    }
  };

  async function open(box) {
    try {
      grid(box, await load(box.dataset.src), { page: Number(box.dataset.page) || 100, class: box.dataset.class });
    } catch (error) {
      complain(box, error);
      return;
    }
    apply(box);
    press(box);
    for (const select of selects(box)) {
      select.addEventListener("change", () => { place.write({ [select.dataset.column]: select.value }); press(box); });
    }
    for (const button of document.querySelectorAll("button[data-filter]")) {
      const select = selects(box).find((one) => one.dataset.column === button.dataset.filter);
      if (!select) { button.disabled = true; continue; }
      button.addEventListener("click", () => {
        select.value = select.value === button.dataset.value ? "" : button.dataset.value;
        select.dispatchEvent(new Event("change"));
      });
    }
    window.addEventListener("hashchange", () => apply(box));
    box.dataset.ready = "true";
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".linked-grid[data-src]").forEach(open));
})();
