"use strict";
// Shared by all pages: data files, the view in the URL, and the theme. No network; only the theme is stored.
window.effbench = (() => {
  const values = new Map(); // URL of a data file -> its value
  const loading = new Map();

  /** Called by data files: `effbench.put(value);`. */
  const put = (value) => values.set(document.currentScript.src, value);

  /** Return a promise of a data file's value; each file is loaded once. */
  function load(source) {
    const url = new URL(source, document.baseURI).href;
    if (!loading.has(url)) loading.set(url, fetched(url, source));
    return loading.get(url);
  }

  /** Load a data file as a script, which calls `put`: pages on a disk cannot read other files. */
  async function fetched(url, source) {
    if (!values.has(url)) {
      const script = element("script", { src: url });
      await new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${source}`));
        document.head.append(script);
      });
    }
    if (!values.has(url)) throw new Error(`no data in ${source}`);
    return values.get(url);
  }

  /** Create an element with attributes and children; strings become text, never HTML. */
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === undefined || value === null || value === false) continue;
      if (key === "class") made.className = value;
      else if (key === "text") made.textContent = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  /** Return three significant digits, as effbench.core.metrics does. */
  function significant(value) {
    const size = Math.abs(value);
    if (size === 0 || size >= 1e6 || size < 1e-4) return String(Number(value.toPrecision(3)));
    return value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(size))));
  }
  function bytes(value) {
    const power = Math.min(4, Math.floor(Math.log2(Math.max(1, Math.abs(value))) / 10));
    return power ? `${significant(value / 1024 ** power)} ${" KMGT"[power]}iB` : `${value} B`;
  }

  /** Show an error in place of the content that failed. */
  function complain(place, error) {
    place.replaceChildren(
      element("p", { class: "note", text: `Cannot show this: ${error.message || error}` }),
    );
  }

  // --- the URL captures the view: name=value parameters after # ---
  const place = {
    read: () => Object.fromEntries(new URLSearchParams(location.hash.slice(1))),
    all: (name) => new URLSearchParams(location.hash.slice(1)).getAll(name),
    /** Set parameters, a list as repeated ones; the browser's history gets no new entry. */
    write(changed) {
      const values = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
      for (const [name, value] of Object.entries(changed)) {
        values.delete(name);
        for (const item of Array.isArray(value) ? value : [value])
          if (item !== "" && item !== null && item !== undefined) values.append(name, item);
      }
      if (`#${values}` !== location.hash) history.replaceState(null, "", `#${values}`);
    },
  };

  // --- theme: the system's, or the reader's choice ---
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("effbench-theme");
  } catch {
    /* some browsers have no storage for local files */
  }
  const theme = () => chosen || (dark.matches ? "dark" : "light");
  function choose(name) {
    chosen = name;
    document.documentElement.dataset.theme = name;
    try {
      localStorage.setItem("effbench-theme", name);
    } catch {
      /* kept for this page only */
    }
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  else chosen = null;

  /** Offer all sweeps of the site; choosing one opens the same page of it. */
  async function fillPicker(subjects) {
    const { src, root, page, current } = subjects.dataset;
    const sweeps = await load(src);
    if (sweeps.length < 2) {
      subjects.parentElement.hidden = true; // nothing to choose
      return;
    }
    const choices = sweeps.map(({ folder, name, label, started, hardware }) =>
      element("option", {
        value: folder,
        selected: folder === current,
        text: [name, label, started, hardware].filter(Boolean).join(" · "),
      }),
    );
    const first = current
      ? []
      : [element("option", { value: "", selected: true, text: "choose a sweep" })];
    subjects.replaceChildren(...first, ...choices);
    subjects.addEventListener("change", () => {
      if (subjects.value) location.href = `${root}${subjects.value}/${page}.html${location.hash}`;
    });
    window.addEventListener("pageshow", () => {
      // after Back, the selection must match the page again
      for (const option of subjects.options) option.selected = option.defaultSelected;
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      button.setAttribute(
        "aria-label",
        `switch to the ${theme() === "dark" ? "light" : "dark"} theme`,
      );
    };
    button.addEventListener("click", () => {
      choose(theme() === "dark" ? "light" : "dark");
      label();
    });
    label();
    const subjects = document.getElementById("subjects");
    if (subjects) fillPicker(subjects).catch((error) => complain(subjects.parentElement, error));
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // the URL keeps the view
      const main = document.getElementById("main");
      main.tabIndex = -1;
      main.focus();
    });
  });

  return { put, load, element, significant, bytes, complain, place };
})();
