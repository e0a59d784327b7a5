"use strict";
// Two environments side by side: every fact of both, what differs marked; the choice stands in the address.
document.addEventListener("DOMContentLoaded", async () => {
  const { load, grid, complain, place } = window.effbench;
  const box = document.getElementById("both");
  if (!box) return;
  const [first, second] = [document.getElementById("first"), document.getElementById("second")];
  const only = document.getElementById("only");
  const text = (cell) => (cell === null || cell === undefined ? "—" : typeof cell === "object" ? cell.t : String(cell));
  const value = (cell) => (cell !== null && typeof cell === "object" && cell.v !== undefined ? cell.v : text(cell));

  /** A link to one environment opens all that is known of it. */
  function reveal() {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
  }

  const choose = (select, wanted) => {
    const known = [...select.options].find((option) => wanted && (option.dataset.id === wanted || (wanted.length >= 6 && option.dataset.id.startsWith(wanted))));
    if (known) known.selected = true;
  };

  let turn = 0;
  async function show() {
    const own = (turn += 1);
    let sides;
    try { sides = await Promise.all([load(first.value), load(second.value)]); } catch (error) { complain(box, error); return; }
    if (own !== turn) return;
    const facts = new Map(); // part and name -> [part, name, a, b]
    sides.forEach((side, index) => {
      for (const [part, name, found] of side.rows) {
        if (part === "record") continue; // of the row in the database, not of the machine
        const key = `${part}\n${name}`;
        if (!facts.has(key)) facts.set(key, [part, name, null, null]);
        facts.get(key)[2 + index] = found;
      }
    });
    // in the order of the parts, also where the second has what the first lacks
    const parts = [...new Set([...facts.values()].map(([part]) => part))];
    const rows = [...facts.values()].sort((one, other) => parts.indexOf(one[0]) - parts.indexOf(other[0])).map(([part, name, a, b]) => {
      const differs = value(a) !== value(b);
      const cell = (found) => ({ t: text(found), v: value(found), ...(differs ? { c: "differs" } : {}) });
      return [differs ? { t: "≠", d: "differs", v: "differs" } : { t: "=", d: "the same", v: "same" }, part, name, cell(a), cell(b)];
    });
    const names = [first, second].map((select) => select.selectedOptions[0].textContent.trim());
    const columns = [{ title: "differs" }, { title: "part", filter: true }, { title: "fact" }, { title: `first: ${names[0]}`, wide: true }, { title: `second: ${names[1]}`, wide: true }];
    const count = rows.filter(([state]) => state.v === "differs").length;
    document.getElementById("differing").textContent = `${count} of ${rows.length} facts differ.`;
    grid(box, { caption: `${names[0]} and ${names[1]}, fact by fact`, columns, rows }, { keep: (row) => !only.checked || row[0].v === "differs", page: 400 });
    box.dataset.shown = `${first.selectedOptions[0].dataset.id} ${second.selectedOptions[0].dataset.id}`;
  }

  function read() {
    const { a, b, only: alone } = place.read();
    choose(first, a);
    choose(second, b);
    if (alone !== undefined) only.checked = alone === "1";
  }
  const changed = () => {
    place.write({ a: first.selectedOptions[0].dataset.id, b: second.selectedOptions[0].dataset.id, only: only.checked ? "1" : "0" });
    show();
  };
  for (const control of [first, second, only]) control.addEventListener("change", changed);
  window.addEventListener("hashchange", () => { reveal(); if (place.read().a || place.read().b) { read(); show(); } });
  read();
  reveal();
  await show();
});
