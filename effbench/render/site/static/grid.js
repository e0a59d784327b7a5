"use strict";
// Tables with sorting, filters, pages and copying; cells are inserted as text, never as HTML.
(() => {
  const { load, element, complain, place } = window.effbench;
  const natural = new Intl.Collator("en", { numeric: true }); // P2 before P10
  const value = (cell) =>
    cell !== null && typeof cell === "object" ? (cell.value ?? cell.text) : cell;
  function text(cell) {
    if (cell === null || cell === undefined) return "—";
    if (typeof cell === "object") return cell.text ?? ""; // an empty text is not sent
    const isFraction = typeof cell === "number" && !Number.isInteger(cell);
    return isFraction ? String(Number(cell.toPrecision(4))) : String(cell);
  }

  /** Create a table cell with its link, glyph, second line and classes. */
  function filled(cell, column) {
    const classes = [column.numeric && "num", column.wide && "reason", cell?.tone].filter(Boolean);
    const td = element("td", { class: classes.join(" ") || null });
    if (cell === null || typeof cell !== "object") {
      td.textContent = text(cell);
      return td;
    }
    const glyph =
      cell.glyph &&
      element("span", {
        class: "glyph",
        style: `color:${cell.glyph.color}`,
        "aria-hidden": "true",
        text: cell.glyph.character,
      });
    td.append(
      element(
        cell.href ? "a" : "span",
        { href: cell.href, title: cell.hint, class: cell.glyph ? "mode" : null },
        glyph,
        cell.text,
      ),
    );
    if (cell.details) td.append(element("span", { class: "sub", text: cell.details }));
    return td;
  }

  /** Create a row of these columns. With one link target, it is clickable as a whole; its link serves the keyboard. */
  function rowOf(row, columns) {
    const made = element("tr");
    made.append(...columns.map(({ column, index }) => filled(row[index], column)));
    const [target, ...others] = new Set(row.map((cell) => cell?.href).filter(Boolean));
    if (target && !others.length) {
      made.className = "leads";
      made.addEventListener("click", (event) => {
        const isOnText = event.target.closest("a, button") || String(getSelection());
        if (!isOnText) location.href = target;
      });
    }
    return made;
  }

  /** Return the value that a cell is sorted by; null comes last in both directions. */
  const sortable = (cell, { numeric }) => {
    const exact = value(cell);
    if (numeric) return typeof exact === "number" ? exact : null;
    const isEmpty = [null, undefined, "", "—"].includes(exact);
    return isEmpty ? null : String(exact).toLowerCase();
  };

  /** Compare two values of `sortable` in a direction: below 0 if `a` comes first. */
  function compare(a, b, direction) {
    if (a === b) return 0;
    if (a === null) return 1;
    if (b === null) return -1;
    const up = Number.isNaN(a - b) ? natural.compare(a, b) : a - b; // also of texts that are numbers
    return direction === "asc" ? up : -up;
  }

  function csv(columns, rows) {
    const quote = (item) => (/[",\n\r]/.test(item) ? `"${item.replace(/"/g, '""')}"` : item);
    const lines = [
      columns.map((column) => column.title),
      ...rows.map((row) => row.map((cell) => String(value(cell) ?? ""))),
    ];
    return lines.map((line) => `${line.map(quote).join(",")}\n`).join("");
  }

  function markdown(columns, rows) {
    const safe = (item) =>
      item
        .replace(/\s+/g, " ")
        .replace(/[\\|*]/g, "\\$&")
        .replace(/</g, "&lt;");
    const full = (cell) => (cell?.details ? `${text(cell)} (${cell.details})` : text(cell));
    const lines = [
      columns.map((column) => safe(column.title)),
      columns.map((column) => (column.numeric ? "---:" : "---")),
      ...rows.map((row) => row.map((cell) => safe(full(cell)))),
    ];
    return lines.map((line) => `| ${line.join(" | ")} |\n`).join("");
  }

  async function copy(content, button) {
    const label = button.textContent;
    let done = true;
    try {
      await navigator.clipboard.writeText(content);
    } catch {
      // without https there is no clipboard
      const area = element("textarea", { class: "off" });
      area.value = content;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.textContent = done ? "copied" : "copying failed";
    setTimeout(() => {
      button.textContent = label;
    }, 1500);
  }

  /**
   * Show `source` (see grid_data in page.py) in `box`. Returns { grid, draw(), visible(column, shown) }.
   * options.state: initial { filters (Map: number of a column -> value),
   * search, order }; values that do not fit are ignored. options.changed: called with the state after each change.
   * options.page: rows per page. options.class: CSS class of the table.
   */
  function show(box, source, options = {}) {
    const given = options.state || {};
    const size = options.page || 100;
    const long = source.rows.length > Math.min(25, size);
    const filters = new Map(); // column -> value
    const hidden = new Set(); // columns
    let order = given.order || source.order || null; // { column: its number, direction: asc or desc }
    let search = long && given.search ? given.search : "";
    let shown = source.rows;

    const body = element("tbody");
    const heads = source.columns.map((column, index) =>
      element(
        "th",
        {
          scope: "col",
          title: column.help,
          class: column.numeric ? "num" : null,
          onclick: () => sortBy(index),
        },
        element("button", { type: "button", class: "sort", text: column.title }),
      ),
    );
    const table = element(
      "table",
      { class: `grid ${options.class || ""}` },
      element("caption", { class: "off", text: source.caption }),
      element("thead", {}, element("tr", {}, ...heads)),
      body,
    );
    const choices = element("div", { class: "filters" });
    const tools = element("div", { class: "tools" });
    const info = element("span", { role: "status" });
    const pager = element("span", { class: "pages" });
    box.replaceChildren(
      element("div", { class: "bar-of-table" }, choices, tools),
      element(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": source.caption },
        table,
      ),
      ...(long ? [element("div", { class: "below-table" }, info, pager)] : []),
    );

    const changed = () => {
      draw();
      if (options.changed) options.changed({ filters, search, order });
    };
    function fits(row) {
      for (const [index, wanted] of filters) if (text(row[index]) !== wanted) return false;
      const whole = search && row.map(text).join("\n").toLowerCase();
      return search
        .toLowerCase()
        .split(/\s+/)
        .every((word) => whole.includes(word));
    }

    /** A click sorts upwards, then downwards, then not at all. */
    function sortBy(index) {
      if (order?.column !== index) order = { column: index, direction: "asc" };
      else if (order.direction === "asc") order = { column: index, direction: "desc" };
      else order = null;
      changed();
    }

    /** Filter and sort the rows, and show the first page. */
    function draw() {
      shown = source.rows.filter(fits);
      const { column: by, direction } = order || {};
      if (order) {
        const keyed = shown.map((row) => ({ key: sortable(row[by], source.columns[by]), row }));
        keyed.sort((a, b) => compare(a.key, b.key, direction));
        shown = keyed.map(({ row }) => row);
      }
      heads.forEach((head, index) => {
        head.dataset.order = index === by ? direction : "";
        if (index === by)
          head.setAttribute("aria-sort", direction === "desc" ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
        head.hidden = hidden.has(index);
      });
      turn(0);
    }

    /** Show a page of the rows. */
    function turn(page) {
      const visible = source.columns
        .map((column, index) => ({ column, index }))
        .filter(({ index }) => !hidden.has(index));
      const rows = shown.slice(page * size, (page + 1) * size).map((row) => rowOf(row, visible));
      if (!rows.length) {
        const why = source.rows.length ? "No row matches the filters." : "No rows.";
        rows.push(element("tr", {}, element("td", { colspan: visible.length, text: why })));
      }
      body.replaceChildren(...rows);
      if (!long) return;
      const first = shown.length ? page * size + 1 : 0;
      const end = Math.min((page + 1) * size, shown.length);
      info.textContent = `${first} to ${end} of ${shown.length} rows`;
      if (shown.length < source.rows.length) {
        info.textContent += ` (${source.rows.length} in all)`;
      }
      pager.replaceChildren(...pageButtons(page));
    }

    /** Return the buttons of the pages near this one; none if there is one page. */
    function pageButtons(page) {
      const last = Math.ceil(shown.length / size) - 1;
      if (last < 1) return [];
      const button = (to, name, label) =>
        element("button", {
          type: "button",
          "aria-label": label,
          "aria-current": to === page ? "page" : null,
          disabled: to < 0 || to > last,
          text: name,
          onclick: () => turn(to),
        });
      const near = new Set([0, page - 1, page, page + 1, last]);
      const pages = [...near].filter((one) => one >= 0 && one <= last);
      return [
        button(page - 1, "‹", "previous page"),
        ...pages.map((one) => button(one, String(one + 1), `page ${one + 1}`)),
        button(page + 1, "›", "next page"),
      ];
    }

    /** Return the choice of a column's values, null with fewer than two of them. */
    function filterOf(column, index) {
      const values = new Set(source.rows.map((row) => text(row[index])));
      if (values.size < 2) return null;
      const wanted = given.filters?.get(index);
      if (wanted && values.has(wanted)) filters.set(index, wanted);
      const select = element(
        "select",
        { "data-column": column.title },
        element("option", { value: "", text: "all" }),
      );
      for (const name of [...values].filter(Boolean)) {
        const selected = name === filters.get(index);
        select.append(element("option", { value: name, text: name, selected }));
      }
      select.addEventListener("change", () => {
        if (select.value === "") filters.delete(index);
        else filters.set(index, select.value);
        changed();
      });
      return element("label", {}, `${column.title} `, select);
    }

    source.columns.forEach((column, index) => {
      const filter = column.filter ? filterOf(column, index) : null;
      if (filter) choices.append(filter);
    });
    if (long) {
      const input = element("input", { type: "search", placeholder: "any text", value: search });
      input.addEventListener("input", () => {
        search = input.value;
        changed();
      });
      choices.append(element("label", {}, "search ", input));
    }
    for (const [name, write] of Object.entries({ Markdown: markdown, CSV: csv })) {
      const button = element("button", {
        type: "button",
        class: "quiet",
        "data-copy": name,
        text: `copy ${name}`,
      });
      const pick = (row) => row.filter((_, index) => !hidden.has(index));
      button.addEventListener("click", () =>
        copy(write(pick(source.columns), shown.map(pick)), button),
      );
      tools.append(button);
    }
    draw();
    return {
      grid: source,
      draw,
      visible: (index, on) => {
        if (on) hidden.delete(index);
        else hidden.add(index);
      },
    };
  }

  /** Show a table with its filters in the URL. */
  function linked(box, source) {
    const columns = source.columns
      .map(({ title, filter }, index) => ({ title, filter, index }))
      .filter(({ filter }) => filter);
    const named = (filters) =>
      Object.fromEntries(columns.map(({ title, index }) => [title, filters.get(index)]));
    let own = {}; // the filters, by title
    function render() {
      const wanted = place.read();
      const state = { filters: new Map(columns.map(({ title, index }) => [index, wanted[title]])) };
      const changed = ({ filters }) => {
        own = named(filters);
        place.write(own);
      };
      own = named(state.filters);
      show(box, source, {
        page: Number(box.dataset.page),
        class: box.dataset.class,
        state,
        changed,
      });
    }
    window.addEventListener("hashchange", () => {
      // a link within the page, such as #series=ID, keeps the filters
      if (location.hash.includes("=") && !columns.some(({ title }) => title in place.read()))
        place.write(own);
      render();
    });
    render();
    box.dataset.ready = "true";
  }

  async function open(box) {
    try {
      const source = await load(box.dataset.src);
      if (box.matches(".linked-grid")) linked(box, source);
      else show(box, source, { page: Number(box.dataset.page) });
    } catch (error) {
      complain(box, error);
    }
  }

  window.effbench.grid = show;
  window.effbench.linked = linked;
  window.effbench.copy = copy;
  document.addEventListener("DOMContentLoaded", () => {
    // load a folded table when it is unfolded
    const watcher = new IntersectionObserver(
      (entries) =>
        entries
          .filter((entry) => entry.isIntersecting)
          .forEach(({ target }) => {
            watcher.unobserve(target);
            open(target);
          }),
      { rootMargin: "1000000px" },
    );
    for (const box of document.querySelectorAll(".grid-place[data-src], .linked-grid[data-src]")) {
      if (box.closest("details:not([open]), [hidden]")) watcher.observe(box);
      else open(box);
    }
  });
})();
