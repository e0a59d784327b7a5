"use strict";
// Chooses the models that a page shows: one (#shown=NAME in the URL) or a range (#from=25).
document.addEventListener("DOMContentLoaded", () => {
  const { place } = window.effbench;
  const select = document.getElementById("models");
  if (!select) return;
  const options = [...select.options];
  const firstOf = (option) => Number(option.dataset.first);
  const ranges = options.filter((option) => option.dataset.name === undefined);

  /** Return how many columns these figures have: three or four of many, so that rows are even. */
  function columnsOf(figures) {
    if (figures <= 4) return figures;
    return [5, 6, 9].includes(figures) ? 3 : 4;
  }

  function show() {
    const { first, end } = select.selectedOptions[0].dataset;
    for (const figure of document.querySelectorAll("figure[data-at]")) {
      figure.hidden =
        Number(figure.dataset.at) < Number(first) || Number(figure.dataset.at) >= Number(end);
    }
    for (const box of document.querySelectorAll(".panels")) {
      const shown = box.querySelectorAll("figure:not([hidden])").length;
      box.style.setProperty("--columns", columnsOf(shown));
      for (const chart of box.querySelectorAll(".chart[data-drawn]"))
        window.Plotly.Plots.resize(chart);
    }
    window.effbench.drawAll();
  }
  function read() {
    const { shown, from } = place.read();
    const named = shown && options.find((option) => option.dataset.name === shown);
    const range = ranges.find((option) => firstOf(option) + 1 === Number(from));
    const wanted = named || range || options[0];
    wanted.selected = true;
    show();
  }
  select.addEventListener("change", () => {
    const option = select.selectedOptions[0];
    const first = firstOf(option);
    place.write({
      shown: option.dataset.name,
      from: option.dataset.name === undefined && first ? first + 1 : "",
    });
    show();
  });
  window.addEventListener("hashchange", read);
  read();
});
