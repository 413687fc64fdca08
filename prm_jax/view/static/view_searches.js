// The table of searches, and the tree of each.
"use strict";
view.searches = (() => {
  const { element: el, text } = prm;
  const {
    address, by, control, count, facts, fold, index, item, keys, link, mark, neighbours,
    number, outcomeMark, page, place, rowsOf, select, short, sortOf, table, THRESHOLD,
  } = view;

  const found = index.searches;
  const SEARCH_SORTS = {
    id: (i) => found.id[i], file: (i) => found.file[i], answer: (i) => found.answer[i],
    outcome: (i) => found.outcome[i] === null ? null : String(found.outcome[i]),
    nodes: (i) => found.nodes[i], tokens: (i) => found.tokens[i],
  };

  function searchOrder(params) {
    const file = params.get("file");
    const words = (params.get("text") || "").toLowerCase();
    const rows = [...Array(count("searches")).keys()].filter((i) =>
      (file === null || found.file[i] === file)
      && (!words || `${found.id[i]}\n${found.answer[i]}`.toLowerCase().includes(words)));
    const { name, down } = sortOf(params);
    if (SEARCH_SORTS[name]) rows.sort(by(SEARCH_SORTS[name], down));
    return rows;
  }

  function showSearches({ params }) {
    const results = el("div");
    const said = el("p", { role: "status" });
    function change(changes) {
      history.replaceState(null, "", address("searches", "", place().params, changes));
      params = place().params;
      fill();
    }
    function fill() {
      const rows = searchOrder(params);
      said.textContent = `${number(rows.length)} of ${number(count("searches"))} searches`;
      const focused = document.activeElement?.dataset?.sort;
      results.replaceChildren(table("Searches", [
        { label: "problem", sort: "id", css: "name", cell: (i) => link(found.id[i], address("search", found.key[i], params), { "data-row": i }) },
        { label: "file", sort: "file", css: "name", cell: (i) => found.file[i] },
        { label: "answer", sort: "answer", css: "name", cell: (i) => short(found.answer[i] ?? "none") },
        { label: "reference", css: "name", cell: (i) => short(found.reference[i] ?? "not known") },
        { label: "outcome", sort: "outcome", cell: (i) => outcomeMark(found.outcome[i]) || "–" },
        { label: "nodes", sort: "nodes", number: true, cell: (i) => number(found.nodes[i]) },
        { label: "tokens", sort: "tokens", number: true, cell: (i) => number(found.tokens[i]) },
      ], rows, sortOf(params), (sort) => change({ sort })));
      if (focused) results.querySelector(`[data-sort="${focused}"]`)?.focus();
    }
    const ways = [...new Set(index.searched.flatMap((x) => x.ways.map(([way]) => way)))];
    const summary = table("Right answers by file", [
      { label: "file", css: "name", cell: (x) => x.name },
      ...ways.map((way) => ({ label: `${way}, right`, number: true, cell: (x) => {
        const own = x.ways.find(([name]) => name === way);
        return own ? `${prm.fixed(100 * own[1] / own[2], 1)} % (${own[1]} of ${own[2]})` : "–";
      } })),
      { label: "nodes", number: true, cell: (x) => number(x.nodes) },
      { label: "trees", number: true, cell: (x) => number(x.trees) },
      { label: "sampled tokens", number: true, cell: (x) => number(x.tokens) },
    ], index.searched);
    const search = el("input", { type: "search", id: "text", oninput: () => change({ text: search.value }) });
    search.value = params.get("text") || "";
    const filters = el("div", { class: "row filters", role: "search" }, control("Text in problem's id, answer", search));
    if (index.searched.length > 1) {
      filters.append(control("File", select([["", "all"], ...index.searched.map((x) => [x.name, x.name])],
        params.get("file") || "", (file) => change({ file }))));
    }
    page.replaceChildren(el("h2", {}, "Searches"), summary, filters, said, results,
      keys(["/", "text"], ["↑ ↓", "searches"], ["Enter", "opens one"]));
    fill();
  }

  /** Returns the tree of a search; `opened` are nodes that are shown at once. */
  function treeOf(search, opened, target) {
    const nodes = new Map(search.nodes.map((x) => [x.id, x]));
    // Of each node, its children: those that are alike together.
    const children = new Map();
    for (const node of search.nodes) {
      if (!children.has(node.parent)) children.set(node.parent, new Map());
      const groups = children.get(node.parent);
      if (!groups.has(node.like)) groups.set(node.like, []);
      groups.get(node.like).push(node);
    }
    const groupsOf = (id) => [...(children.get(id) || new Map()).entries()]
      .map(([like, members]) => [nodes.get(like), members.filter((x) => x.id !== like)])
      .sort(([a], [b]) => b.is_path - a.is_path || b.score - a.score);

    /** Returns a button that shows a list, which is made when it first opens. */
    function opener(label, words, make, isOpen) {
      const list = el("ul", { class: "branches", hidden: true });
      const button = el("button", { type: "button", "aria-expanded": "false", onclick: () => set(list.hidden) },
        el("span", { class: "hidden" }, words), el("span", { "aria-hidden": "true" }, label(false)));
      function set(open) {
        if (open && !list.childElementCount) list.append(...make());
        list.hidden = !open;
        button.setAttribute("aria-expanded", String(open));
        button.lastChild.textContent = label(open);
      }
      button.open = () => set(true);
      if (isOpen) set(true);
      return [button, list];
    }

    const branch = (node, alike) => el("li", {}, el("ul", {}, ...chain(node, alike)));

    /** Returns the entries from a node on, until the tree branches or ends. */
    function chain(node, alike) {
      const entries = [];
      for (;;) {
        const groups = groupsOf(node.id);
        entries.push(entry(node, alike, groups));
        if (groups.length !== 1) return entries;
        [[node, alike]] = groups;
      }
    }

    function entry(node, alike, groups) {
      const css = ["node", node.is_path && "path", node.is_lost && "lost", node.id === target && "target"];
      const made = el("li", { class: css.filter(Boolean).join(" "), id: `node${node.id}`, tabindex: "-1" });
      const line = el("div", { class: node.is_first_wrong ? "line wrong" : "line" });
      const own = el("div", { class: "own" });
      const lists = [];
      const steps = node.steps.length ? node.steps : [["(no step)", node.score, null]];
      steps.forEach(([step, score, right], i) => {
        const words = el("div", {}, el("span", { class: "hidden" }, `score ${prm.shown(score)}: `),
          text(el("span"), step || "(empty)"));
        if (steps.length > 1) words.prepend(el("span", { class: "mark" }, prm.shown(score)), " ");
        if (right === false) words.append(mark(node.is_first_wrong ? "✗ first wrong step" : "✗ wrong", "wrong"));
        if (right === true) words.append(mark("✓", "right"));
        if (i === steps.length - 1) words.append(...more());
        own.append(words);
      });
      function more() {
        const parts = node.tags.map((x) =>
          mark(x, x === "wrong answer" ? "wrong" : x === "right answer" || x === "chosen" ? "right" : ""));
        if (alike.length) {
          const isOpen = alike.some((x) => opened.has(x.id));
          const [button, list] = opener((open) => `${open ? "▾" : "▸"} × ${alike.length + 1} alike`,
            `${alike.length} more steps like this one: `, () => alike.map((x) => branch(x, [])), isOpen);
          parts.push(button);
          lists.push(list);
        }
        if (groups.length > 1) {
          const [button, list] = opener((open) => `${open ? "▾" : "▸"} ${groups.length} ways on`,
            "what follows: ", () => groups.map((x) => branch(...x)), opened.has(node.id));
          parts.push(button);
          lists.unshift(list);
        }
        const dots = el("span", { title: "bookkeeping" },
          el("span", { "aria-hidden": "true" }, "⋯"), el("span", { class: "hidden" }, "bookkeeping"));
        parts.push(fold(dots, el("span", {}, prm.visible(node.facts.filter(Boolean).join(" · "))),
          ...(node.ahead.length ? [el("p", {}, "Written after it, only to score it:"),
            ...node.ahead.map((x) => text(el("p"), x))] : [])));
        return parts;
      }
      line.append(scoreChip(node.score), own);
      made.append(line, ...lists);
      return made;
    }

    const root = groupsOf(0);
    return el("ul", { class: "tree" }, ...root.map((x) => branch(...x)));
  }

  function scoreChip(score) {
    const made = el("span", { class: "chip", "aria-hidden": "true" }, prm.shown(score));
    prm.colour(made, score, THRESHOLD);
    return made;
  }

  async function showSearch({ key, params }) {
    const row = rowsOf.searches.get(key);
    if (row === undefined) throw new Error(`there is no search ${key}`);
    const search = await item("searches", row);
    const nodes = new Map(search.nodes.map((x) => [x.id, x]));
    const target = Number(params.get("node") || 0);
    const opened = new Set(search.nodes.filter((x) => x.is_path).map((x) => x.id));
    for (let at = nodes.get(target); at; at = nodes.get(at.parent)) opened.add(at.id);
    const rows = [["Reference", search.reference ?? "not known", null, null, null], ...search.answers];
    const answers = table("Answers", [
      { label: "chosen by", cell: ([way]) => way },
      { label: "answer", css: "name", cell: ([, answer]) => short(answer ?? "none") },
      { label: "outcome", cell: ([, , outcome]) => outcomeMark(outcome) || "–" },
      { label: "of", cell: ([way, , , node]) => node !== null
        ? link(`node ${node}`, address("search", key, params, { node })) : way === "Reference" ? "" : "no candidate" },
      { label: "its score", number: true, cell: ([, , , , score]) => score === null ? "" : prm.shown(score) },
    ], rows);
    const bill = table("Bill, in tokens", ["model", "calls", "sampled", "read", "computed", "reused"]
      .map((label, i) => ({ label, number: i > 0, cell: (x) => x[i] })), search.bill);
    const rounds = table("Rounds", ["continued", "stayed", "new"]
      .map((label, i) => ({ label, css: "wide", cell: (x) => x[i] })), search.rounds);
    const hasTruth = search.nodes.some((x) => x.steps.some((y) => y[2] !== null));
    const tree = el("div");
    const draw = (all) => tree.replaceChildren(
      treeOf(search, all ? new Set(search.nodes.map((x) => x.id)) : opened, target));
    draw(false);
    page.replaceChildren(neighbours("searches", row, searchOrder(params), params),
      el("h2", {}, prm.visible(search.id)), el("p", { class: "note" }, `${prm.visible(search.file)}: ${number(search.nodes.length)} nodes`),
      text(el("div", { class: "problem" }), search.problem), answers,
      el("h3", {}, "What was written"),
      el("p", { class: "note" }, "A line is a step with its score. Lines below each other go on; where the tree branches, it is indented, the chosen path and the best scores first. Equal steps are one line. "
        + (hasTruth ? "✓ and ✗ are labels." : "No label of these steps is known.")),
      el("div", { class: "row" }, el("button", { type: "button", onclick: () => draw(true) }, "open all"),
        el("button", { type: "button", onclick: () => draw(false) }, "only the chosen path")),
      tree,
      fold("Bill", bill, el("p", { class: "note" }, "Read: the tokens that a model was given, each call's from the first on. Computed: those among them that it hadn't read or written for this problem, as with a cache of all prefixes. Reused: the others."),
        facts(search.facts)),
      fold(`Rounds (${search.rounds.length})`, rounds),
      keys(["← →", "previous and next"], ["Esc", "the table"]));
    return target ? document.getElementById(`node${target}`) : null;
  }

  return { all: showSearches, one: showSearch };
})();
