"use strict";
// Which models' small figures a page shows: one of them, all, or where there are many a page of them; with their numbers.
// The address says which: #model=NAME, or #page=2.
document.addEventListener("DOMContentLoaded", () => {
  const { load, grid, complain, place } = window.effbench;
  const box = document.getElementById("models");
  if (!box) return;
  const model = document.getElementById("model");
  const pages = document.getElementById("models-page"); // none where all fit on one
  const size = Number(box.dataset.size);
  const steps = [...box.querySelectorAll("button[data-step]")];
  const figures = [...document.querySelectorAll("figure[data-at]")];
  const tables = [...document.querySelectorAll(".grid-place[data-parts]")];
  const chosen = () => (model.value === "" ? null : Number(model.value));
  const page = () => (chosen() === null ? pages.selectedIndex : Math.floor(chosen() / size));
  const nameOf = (at) => model.options[at + 1].dataset.name;

  /** The numbers of what is shown, where the reader has opened them. */
  async function fill(table) {
    const part = JSON.parse(table.dataset.parts)[page()];
    const wanted = `${part} ${model.value}`;
    if (table.closest("details:not([open])") || table.dataset.shows === wanted) return;
    table.dataset.shows = wanted;
    try {
      const source = await load(part);
      if (table.dataset.shows !== wanted) return; // others were asked for meanwhile
      grid(table, source);
    } catch (error) { complain(table, error); return; }
    const select = table.querySelector("select[data-column=model]");
    if (chosen() !== null && select) {
      select.value = nameOf(chosen());
      select.dispatchEvent(new Event("change"));
    }
  }

  function show() {
    for (const figure of figures) {
      const at = Number(figure.dataset.at);
      figure.hidden = chosen() === null ? Boolean(pages) && Math.floor(at / size) !== page() : at !== chosen();
    }
    for (const step of steps) step.disabled = !pages.options[page() + Number(step.dataset.step)];
    if (pages) {
      pages.selectedIndex = page();
      tables.forEach(fill);
    }
    window.dispatchEvent(new Event("effbench-panels"));
  }
  function go(number) {
    model.value = "";
    pages.selectedIndex = number;
    place.write({ model: "", page: number ? number + 1 : "" });
    show();
  }
  function read() {
    const { model: name, page: number } = place.read();
    const option = [...model.options].find((one) => one.dataset.name !== undefined && one.dataset.name === name);
    model.value = option ? option.value : "";
    if (pages) pages.selectedIndex = /^[0-9]{1,6}$/.test(number || "") && pages.options[Number(number) - 1] ? Number(number) - 1 : 0;
    show();
  }

  model.addEventListener("change", () => {
    const at = chosen();
    place.write({ model: at === null ? "" : nameOf(at), page: at === null && pages && pages.selectedIndex ? pages.selectedIndex + 1 : "" });
    show();
  });
  if (pages) {
    pages.addEventListener("change", () => go(pages.selectedIndex));
    for (const step of steps) {
      step.addEventListener("click", () => {
        go(page() + Number(step.dataset.step));
        if (step.disabled) steps.find((one) => !one.disabled).focus(); // a disabled button would lose the keyboard's place
      });
    }
    for (const table of tables) table.closest("details").addEventListener("toggle", () => fill(table));
  }
  window.addEventListener("hashchange", read);
  read();
});
