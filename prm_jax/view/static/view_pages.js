// Pages of runs and evaluations: sentences, pictures, tables and facts, as Page
// in reports/result_page.py describes them.
"use strict";
view.pages = (() => {
  const { element: el } = prm;
  const {
    address, chart, control, facts, fold, index, item, link, named, page, rowsOf, select, table,
  } = view;
  // More pages are in a list that opens.
  const MOST_LINKS = 12;

  function tiles(shown) {
    return el("dl", { class: "tiles" }, ...shown.map(({ label, value, small }) => el("div", {},
      el("dt", {}, prm.visible(label)), el("dd", {}, prm.visible(value), el("small", {}, prm.visible(small))))));
  }

  function paragraph(words, css) {
    return words ? el("p", { class: css }, prm.visible(words)) : null;
  }

  function section({ title, text, panels, table: cells, facts: pairs, note, is_folded: isFolded }) {
    const parts = [paragraph(text)];
    if (panels.length) parts.push(el("div", { class: "curves" }, ...panels.map((x) => chart(x, panels.length === 1 && x.lines.length > 1))));
    if (cells && cells.length > 1) {
      const [head, ...rows] = cells;
      parts.push(table(title, head.map((label, i) => ({
        label, number: i > 0, css: "name", cell: (row) => row[i],
      })), rows));
    }
    if (pairs.length) {
      parts.push(facts(pairs.map(({ name, text: told, address: to }) => [to ? link(name, to) : name, told])));
    }
    parts.push(paragraph(note, "note"));
    return isFolded ? fold(title, ...parts) : el("section", {}, el("h3", {}, title), ...parts);
  }

  /** Returns what leads to all pages of a kind: links, or of many a list. */
  function others(kind, key) {
    const names = index[kind].key;
    if (names.length <= MOST_LINKS) {
      return el("nav", { class: "row", "aria-label": `All ${kind}` }, ...names.map((name) =>
        link(name, address(kind, name), name === key ? { "aria-current": "page" } : {})));
    }
    const list = select(names.map((x) => [x, x]), key, (name) => { location.hash = address(kind, name); });
    return el("nav", { class: "row filters", "aria-label": `All ${kind}` }, control(`${names.length} ${kind}`, list));
  }

  async function show(kind, { key }) {
    const row = rowsOf[kind].get(key);
    if (row === undefined) throw new Error(`there is no page ${key} among the ${kind}`);
    const { title, lead, tiles: numbers, sections } = await item(kind, row);
    page.replaceChildren(
      others(kind, key),
      el("h2", {}, ...named(key)),
      ...[title && el("p", { class: "title" }, prm.visible(title)), paragraph(lead), numbers.length ? tiles(numbers) : null,
        ...sections.map(section)].filter(Boolean));
  }

  return { section, run: (at) => show("runs", at), evaluation: (at) => show("evaluations", at) };
})();
