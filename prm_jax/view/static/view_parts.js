// What the pages of `prm-jax view` are made of: addresses, data and small parts.
"use strict";
const view = (() => {
  const { element: el } = prm;
  const index = window.prmIndex;
  const page = document.getElementById("page");
  const THRESHOLD = 0.5;

  // --- Addresses ---

  /** Returns what the address says: {kind, key, params}. */
  function place() {
    const [path, query] = location.hash.slice(1).split(/\?(.*)/s);
    const [kind, ...rest] = path.split("/");
    let key = rest.join("/");
    try {
      key = decodeURIComponent(key);
    } catch { /* What isn't encoded is taken as it is. */ }
    return { kind, key, params: new URLSearchParams(query || "") };
  }

  /** Returns an address; parameters without a value are left out. */
  function address(kind, key, params, changes = {}) {
    const all = new URLSearchParams(params);
    for (const [name, value] of Object.entries(changes)) {
      if (value === "" || value === null || value === false) all.delete(name);
      else all.set(name, value);
    }
    const query = all.size ? `?${all}` : "";
    return `#${kind}${key === "" ? "" : `/${encodeURIComponent(key)}`}${query}`;
  }

  function link(label, to, attributes = {}) {
    return el("a", { href: to, ...attributes }, ...named(label));
  }

  // --- Data ---

  const loading = new Map();

  /** Loads a script of data once; resolves to {first, items}. */
  function chunk(kind, number) {
    const name = `${kind}-${number}`;
    if (!loading.has(name)) {
      loading.set(name, new Promise((resolve, reject) => {
        const script = el("script", { src: `data/${name}.js` });
        script.onload = () => resolve(window.prmData[name]);
        script.onerror = () => {
          loading.delete(name);
          reject(new Error(`data/${name}.js can't be read; is the server still running, the folder whole?`));
        };
        document.head.append(script);
      }));
    }
    return loading.get(name);
  }

  async function item(kind, row) {
    const { first, items } = await chunk(kind, index[kind].chunk[row]);
    return items[row - first];
  }

  const count = (kind) => (index[kind].key || []).length;
  const rowsOf = Object.fromEntries(["samples", "searches", "runs", "evaluations"].map((kind) =>
    [kind, new Map((index[kind].key || []).map((x, i) => [x, i]))]));

  // --- Small parts ---

  const number = (x) => x.toLocaleString("en");
  const mark = (label, css = "") => el("span", { class: `mark ${css}` }, label);
  const outcomeMark = (x) =>
    x === true ? mark("✓ right answer", "right")
      : x === false ? mark("✗ wrong answer", "wrong") : null;

  function facts(pairs) {
    return el("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [
      el("dt", {}, typeof name === "string" ? prm.visible(name) : name),
      el("dd", { class: "text" }, prm.visible(String(value)))]));
  }

  function fold(name, ...children) {
    return el("details", {}, el("summary", {}, name), ...children);
  }

  /** Returns an area that scrolls sideways, also by keyboard. */
  function scrolling(label, child) {
    return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, child);
  }

  /** Returns a table; a column is {label, number, cell, sort}. */
  function table(label, columns, rows, sorted = null, sortBy = null) {
    const head = columns.map((x) => {
      const css = x.number ? "number" : null;
      if (!x.sort || !sortBy) return el("th", { scope: "col", class: css }, x.label);
      const is = sorted.name === x.sort;
      const next = is && !sorted.down ? `-${x.sort}` : x.sort;
      return el("th",
        { scope: "col", class: css, "aria-sort": is ? (sorted.down ? "descending" : "ascending") : "none" },
        el("button", { type: "button", "data-sort": x.sort, onclick: () => sortBy(next) }, x.label));
    });
    const body = rows.map((row) => el("tr", {}, ...columns.map((x) => {
      const shown = x.cell(row);
      return el("td", { class: x.number ? "number" : x.css },
        ...(typeof shown !== "string" ? [shown] : x.number ? [prm.visible(shown)] : named(shown)));
    })));
    return scrolling(label, el("table", {},
      el("caption", { class: "hidden" }, label),
      el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
  }

  const short = (x, most = 80) => {
    const whole = x === null || x === undefined ? "–" : String(x);
    return whole.length > most ? `${whole.slice(0, most)}…` : whole;
  };

  /** Returns a name that breaks after its marks, within a word only if it is long. */
  function named(name) {
    const parts = prm.visible(String(name)).match(/[^/:_.,\s-]{1,30}[/:_.,-]*|[/:_.,-]{1,30}|\s+/gu) || [];
    return parts.flatMap((x, i) => (i ? [el("wbr"), x] : [x]));
  }

  /** Returns a labelled control. */
  function control(label, input) {
    return el("label", {}, label, input);
  }

  function select(options, value, onchange) {
    const made = el("select", { onchange: () => onchange(made.value) },
      ...options.map(([key, label]) => el("option", { value: key }, prm.visible(short(label, 60)))));
    made.value = value;
    return made;
  }

  /** Returns a comparison that puts what isn't known last. */
  function by(value, down) {
    const collator = new Intl.Collator("en", { numeric: true });
    return (a, b) => {
      const [x, y] = [value(a), value(b)];
      const [noX, noY] = [x === null || x === undefined, y === null || y === undefined];
      if (noX || noY) return noX - noY || a - b;
      const order = typeof x === "number" ? x - y : collator.compare(x, y);
      return (down ? -order : order) || a - b;
    };
  }

  function sortOf(params) {
    const told = params.get("sort") || "";
    return { name: told.replace(/^-/, ""), down: told.startsWith("-") };
  }

  function keys(...pairs) {
    return el("p", { class: "note" }, ...pairs.flatMap(([key, does], i) =>
      [i ? " · " : "Keys: ", el("kbd", {}, key), ` ${does}`]));
  }

  /** Returns links to what comes before and after, in the order of the table. */
  function neighbours(kind, row, rows, params) {
    const at = rows.indexOf(row);
    const [one, all] = kind === "samples" ? ["sample", "samples"] : ["search", "searches"];
    const made = el("nav", { class: "row", "aria-label": "Neighbours" });
    const to = (other, label, id) => other === undefined ? null
      : link(label, address(one, index[kind].key[other], params, { node: "" }), { id });
    made.append(
      link("↑ table", address(all, "", params, { node: "", beside: "" }), { id: "up" }),
      to(at < 0 ? undefined : rows[at - 1], "← previous", "previous") || "",
      el("span", {}, at < 0 ? "not among those that the table shows" : `${number(at + 1)} of ${number(rows.length)}`),
      to(at < 0 ? undefined : rows[at + 1], "next →", "next") || "");
    return made;
  }

  return {
    address, by, chunk, control, count, facts, fold, index, item, keys, link, mark,
    named, neighbours, number, outcomeMark, page, place, rowsOf, select, short, sortOf, table,
    THRESHOLD,
  };
})();
