// Pages of runs and evaluations: sentences, pictures, tables and facts, as Page
// in reports/result_page.py describes them.
"use strict";
view.pages = (() => {
  const { element: el } = prm;
  const { address, chart, facts, fold, index, link, named, page, table } = view;

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

  function show(kind, { key }) {
    const found = index[kind].find((x) => x.name === key);
    if (!found) throw new Error(`there is no page ${key} among the ${kind}`);
    const { title, lead, tiles: numbers, sections } = found.page;
    page.replaceChildren(
      el("nav", { class: "row", "aria-label": `All ${kind}` }, ...index[kind].map(({ name }) =>
        link(name, address(kind, name), name === key ? { "aria-current": "page" } : {}))),
      el("h2", {}, ...named(key)),
      ...[title && el("p", { class: "title" }, prm.visible(title)), paragraph(lead), numbers.length ? tiles(numbers) : null,
        ...sections.map(section)].filter(Boolean));
  }

  return { run: (at) => show("runs", at), evaluation: (at) => show("evaluations", at) };
})();
