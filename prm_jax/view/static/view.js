// The pages of `prm-jax view`. What is shown is in the address after "#", so a
// link leads to it: #samples?show=missed, #sample/ID, #search/ID?node=3.
// data/index.js has what tables show; the rest is loaded when it is looked at.
"use strict";
(() => {
  const { element: el, text } = prm;
  const index = window.prmIndex;
  const page = document.getElementById("page");
  const PAGE_ROWS = 100;
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
    return el("a", { href: to, ...attributes }, prm.visible(String(label)));
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
  const rowsOf = {
    samples: new Map((index.samples.key || []).map((x, i) => [x, i])),
    searches: new Map((index.searches.key || []).map((x, i) => [x, i])),
  };

  // --- Small parts ---

  const number = (x) => x.toLocaleString("en");
  const mark = (label, css = "") => el("span", { class: `mark ${css}` }, label);
  const outcomeMark = (x) =>
    x === true ? mark("✓ right answer", "right")
      : x === false ? mark("✗ wrong answer", "wrong") : null;

  function facts(pairs) {
    return el("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [
      el("dt", {}, prm.visible(String(name))),
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
        typeof shown === "string" ? prm.visible(shown) : shown);
    })));
    return scrolling(label, el("table", {},
      el("caption", { class: "hidden" }, label),
      el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
  }

  const short = (x, most = 80) => {
    const whole = x === null || x === undefined ? "–" : String(x);
    return whole.length > most ? `${whole.slice(0, most)}…` : whole;
  };

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

  // --- Which samples, and in which order ---

  const MISSED = ["missed", "late_alarm"];
  const FALSE_ALARM = ["false_alarm", "early_alarm"];
  const VERDICTS = {
    no_label: ["no label", ""],
    doubt_without_label: ["doubt without label", ""],
    unjudged: ["error not judged", ""],
    no_error: ["right, no error", "right"],
    first_error: ["error found", "right"],
    missed: ["missed", "wrong"],
    late_alarm: ["missed, later alarm", "wrong"],
    false_alarm: ["false alarm", "wrong"],
    early_alarm: ["false alarm before the error", "wrong"],
  };
  const data = index.samples;
  const modelOf = (params) => {
    const at = index.models.indexOf(params.get("model"));
    return at < 0 ? 0 : at;
  };
  const verdict = (row, model) => (data.verdicts[row] || [])[model] || null;
  const SHOWS = {
    missed: ["missed error", (i, m) => MISSED.includes(verdict(i, m))],
    false_alarm: ["false alarm", (i, m) => FALSE_ALARM.includes(verdict(i, m))],
    right: ["model right", (i, m) => ["no_error", "first_error"].includes(verdict(i, m))],
    lucky: ["lucky answer", (i) => data.lucky[i]],
    models: ["models disagree", (i) => data.models_disagree[i]],
    labels: ["labels disagree", (i) => data.labels_disagree[i]],
    right_answer: ["right answer", (i) => data.outcome[i] === true],
    wrong_answer: ["wrong answer", (i) => data.outcome[i] === false],
    unlabelled: ["without labels", (i) => !data.labelled[i]],
  };
  const SORTS = {
    id: (i) => data.key[i],
    source: (i) => data.source[i],
    steps: (i) => data.steps[i],
    characters: (i) => data.characters[i],
    answer: (i) => data.answer[i],
    verdict: (i, m) => verdict(i, m) && VERDICTS[verdict(i, m)][0],
    least: (i, m) => (data.least[i] || [])[m],
  };

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

  // The texts of steps, once a search has asked for them.
  let stepTexts = null;

  async function readSteps() {
    const texts = [];
    const last = count("samples") ? data.chunk[count("samples") - 1] : -1;
    for (let i = 0; i <= last; i++) {
      const { items } = await chunk("samples", i);
      texts.push(...items.map((x) => [x.problem, ...x.steps].join("\n").toLowerCase()));
    }
    stepTexts = texts;
  }

  let ordered = { of: null, rows: [] };

  /** Returns the rows that the address asks for, in its order. */
  function order(params) {
    const used = ["model", "show", "source", "text", "inside", "from", "to", "sort"];
    const of = used.map((x) => params.get(x) || "").join("\n") + !!stepTexts;
    if (ordered.of === of) return ordered.rows;
    const model = modelOf(params);
    const shows = (SHOWS[params.get("show")] || [])[1];
    const source = params.get("source");
    const words = (params.get("text") || "").toLowerCase().split(/\s+/).filter(Boolean);
    const from = Number(params.get("from") || 0);
    const to = Number(params.get("to") || Infinity);
    const rows = [];
    for (let i = 0; i < count("samples"); i++) {
      if (source !== null && data.source[i] !== source) continue;
      if (data.steps[i] < from || data.steps[i] > to) continue;
      if (shows && !shows(i, model)) continue;
      if (words.length) {
        const inside = params.get("inside") && stepTexts ? stepTexts[i] : "";
        const whole = `${data.key[i]}\n${data.source[i]}\n${data.problem[i]}\n${data.answer[i] ?? ""}`.toLowerCase() + inside;
        if (!words.every((x) => whole.includes(x))) continue;
      }
      rows.push(i);
    }
    const { name, down } = sortOf(params);
    if (SORTS[name]) rows.sort(by((i) => SORTS[name](i, model), down));
    ordered = { of, rows };
    return rows;
  }

  // --- The table of samples ---

  function marksOf(row, model) {
    const marks = [];
    const named = VERDICTS[verdict(row, model)];
    if (named) marks.push(mark(...named));
    if (data.lucky[row]) marks.push(mark("lucky answer", "wrong"));
    if (data.models_disagree[row]) marks.push(mark("models disagree"));
    if (data.labels_disagree[row]) marks.push(mark("labels disagree"));
    return el("span", { class: "marks" }, ...marks);
  }

  function showSamples({ params }) {
    const results = el("div");
    const said = el("p", { role: "status" });

    function change(changes, keepsPage = false) {
      params = new URLSearchParams(place().params);
      const to = address("samples", "", params, keepsPage ? changes : { ...changes, page: "" });
      history.replaceState(null, "", to);
      params = place().params;
      fill();
    }

    async function fill() {
      if (params.get("inside") && params.get("text") && !stepTexts) {
        said.textContent = "reading all steps …";
        await readSteps();
      }
      const rows = order(params);
      const model = modelOf(params);
      const last = Math.max(0, Math.ceil(rows.length / PAGE_ROWS) - 1);
      const at = Math.min(last, Math.max(0, Number(params.get("page") || 1) - 1) || 0);
      const shown = rows.slice(at * PAGE_ROWS, (at + 1) * PAGE_ROWS);
      const span = shown.length ? `, here ${number(at * PAGE_ROWS + 1)} to ${number(at * PAGE_ROWS + shown.length)}` : "";
      said.textContent = `${number(rows.length)} of ${number(count("samples"))} samples${span}`;
      const least = (i) => (data.least[i] || [])[model] ?? null;
      const columns = [
        { label: "sample", sort: "id", css: "name", cell: (i) => link(data.key[i], address("sample", data.key[i], params), { "data-row": i }) },
        { label: "judgement", sort: index.models.length ? "verdict" : null, cell: (i) => marksOf(i, model) },
        { label: "problem", css: "wide", cell: (i) => short(data.problem[i]) },
        { label: "answer", sort: "answer", css: "name", cell: (i) => el("span", { class: "marks" },
          el("span", { class: "text" }, prm.visible(short(data.answer[i], 40))), outcomeMark(data.outcome[i])) },
        { label: "steps", sort: "steps", number: true, cell: (i) => number(data.steps[i]) },
        { label: "characters", sort: "characters", number: true, cell: (i) => number(data.characters[i]) },
        { label: "source", sort: "source", css: "name", cell: (i) => data.source[i] },
      ];
      if (index.models.length) {
        columns.splice(4, 0, { label: "least score", sort: "least", number: true,
          cell: (i) => least(i) === null ? "–" : prm.shown(least(i)) });
      }
      const focused = document.activeElement?.dataset?.sort;
      results.replaceChildren(table("Samples", columns, shown, sortOf(params), (sort) => change({ sort })));
      if (focused) results.querySelector(`[data-sort="${focused}"]`)?.focus();
      if (last) {
        results.append(el("div", { class: "row", role: "group", "aria-label": "Pages" },
          el("button", { type: "button", disabled: at === 0, onclick: () => change({ page: at }, true) }, "← page before"),
          el("span", {}, `page ${at + 1} of ${last + 1}`),
          el("button", { type: "button", disabled: at === last, onclick: () => change({ page: at + 2 }, true) }, "next page →")));
      }
    }

    const search = el("input", { type: "search", id: "text", oninput: () => change({ text: search.value }) });
    search.value = params.get("text") || "";
    const inside = el("input", { type: "checkbox", onchange: () => change({ inside: inside.checked ? "1" : "" }) });
    inside.checked = !!params.get("inside");
    const bound = (name) => {
      const input = el("input", { type: "number", min: "0", size: "4", oninput: () => change({ [name]: input.value }) });
      input.value = params.get(name) || "";
      return input;
    };
    const sources = [...new Set(data.source)].sort();
    const here = (name) => Object.keys(SHOWS).filter((x) => x === name || ordinary(x));
    const filters = el("div", { class: "row filters", role: "search" },
      control("Text in id, problem, answer", search),
      el("label", { class: "check" }, inside, "and in whole problems and steps"),
      control("Show", select([["", "all"], ...here(params.get("show")).map((x) => [x, SHOWS[x][0]])],
        params.get("show") || "", (show) => change({ show }))));
    if (index.models.length > 1) {
      filters.append(control("Model", select(index.models.map((x) => [x, x]),
        index.models[modelOf(params)], (model) => change({ model }))));
    }
    if (sources.length > 1) {
      filters.append(control("Source", select([["", "all"], ...sources.map((x) => [x, x])],
        params.get("source") || "", (source) => change({ source }))));
    }
    filters.append(control("Steps from", bound("from")), control("to", bound("to")));
    const about = [];
    if (index.truth) about.push(`Steps are compared with the labels of ${prm.visible(index.truth)}.`);
    page.replaceChildren(el("h2", {}, "Samples"), el("p", { class: "note" }, about.join(" ")), filters, said, results,
      keys(["/", "text"], ["↑ ↓", "samples"], ["Enter", "opens one"]));
    return fill();
  }

  /** Returns whether a choice could show anything here. */
  function ordinary(name) {
    const needs = {
      missed: index.models.length, false_alarm: index.models.length, right: index.models.length,
      models: index.models.length > 1,
      labels: (data.labels_disagree || []).some(Boolean),
    };
    return !(name in needs) || needs[name];
  }

  function keys(...pairs) {
    return el("p", { class: "note" }, ...pairs.flatMap(([key, does], i) =>
      [i ? " · " : "Keys: ", el("kbd", {}, key), ` ${does}`]));
  }

  // --- One sample ---

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

  function side(sample, model) {
    const others = sample.models.filter((x) => x !== model);
    const made = el("section", { "aria-label": model ? model.name : "Steps" });
    if (model) {
      made.append(el("h3", {}, prm.visible(model.name)),
        el("p", { class: "verdict" }, model.text));
    }
    const labels = sample.truth.some((x) => x !== null) ? sample.truth : null;
    const steps = sample.steps.map((x) => x || "(no text is given)");
    if (!steps.length) made.append(el("p", { class: "note" }, "This solution has no step."));
    made.append(prm.stepList({ steps, models: model ? [model] : [], labels, threshold: THRESHOLD }));
    return [made, others];
  }

  async function showSample({ key, params }) {
    const row = rowsOf.samples.get(key);
    if (row === undefined) throw new Error(`there is no sample ${key}`);
    const sample = await item("samples", row);
    const rows = order(params);
    const named = sample.models.map((x) => [x.name, x.name]);
    const left = sample.models.find((x) => x.name === params.get("model")) || sample.models[0];
    const right = sample.models.find((x) => x.name === params.get("beside") && x !== left);
    const go = (changes) => { location.hash = address("sample", key, params, changes); };
    const controls = el("div", { class: "row filters" });
    if (named.length > 1) {
      controls.append(
        control("Model", select(named, left.name, (model) => go({ model }))),
        control("Beside it", select([["", "none"], ...named.filter(([x]) => x !== left.name)],
          right ? right.name : "", (beside) => go({ beside }))));
    }
    const problem = text(el("div", { class: "problem" }), sample.problem || "(the problem isn't given)");
    const marks = marksOf(row, index.models.indexOf(left ? left.name : ""));
    const answer = outcomeMark(data.outcome[row]);
    if (answer) marks.append(answer);
    const sides = el("div", { class: right ? "sides two" : "sides" }, side(sample, left)[0],
      right ? side(sample, right)[0] : null);
    const more = [];
    const sources = Object.entries(sample.labels);
    if (sources.length > 1) {
      more.push(fold("Labels by source", table("Labels by source",
        [{ label: "step", number: true, cell: (i) => String(i + 1) },
          ...sources.map(([name, values]) => ({ label: prm.visible(name), number: true,
            cell: (i) => values[i] === null ? "–" : String(+values[i].toFixed(3)) }))],
        sample.steps.map((_, i) => i))));
      if (data.labels_disagree[row]) more[0].open = true;
    }
    if (sample.messages.length) {
      more.push(fold("Conversation", ...sample.messages.map(([role, said]) =>
        el("div", { class: "message" }, el("strong", {}, role), text(el("div"), said)))));
    }
    more.push(fold("What else the files say", facts([["files", sample.files.join(", ")], ...sample.facts])));
    page.replaceChildren(neighbours("samples", row, rows, params),
      el("h2", {}, prm.visible(key)), marks, problem, controls, sides, ...more,
      keys(["← →", "previous and next"], ["Esc", "the table"]));
  }

  // --- Searches ---

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
        return own ? `${(100 * own[1] / own[2]).toFixed(1)} % (${own[1]} of ${own[2]})` : "–";
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
    const good = score >= THRESHOLD;
    made.classList.add(good ? "good" : "bad");
    made.style.setProperty("--strength", (0.07 + Math.abs(score - THRESHOLD) * (good ? 0.6 : 1.2)).toFixed(3));
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

  // --- Runs and evaluations ---

  const SVG = "http://www.w3.org/2000/svg";
  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  const brief = (x) => Number.isInteger(x) && Math.abs(x) < 1e6 ? number(x) : String(+x.toPrecision(4));

  function curve({ name, lines }) {
    const points = lines.flatMap((x) => x.points);
    const range = (at) => points.reduce(([a, b], x) => [Math.min(a, x[at]), Math.max(b, x[at])], [Infinity, -Infinity]);
    const [fromX, toX] = range(0);
    const [fromY, toY] = range(1);
    const [width, height, left, right, bottom] = [320, 150, 52, 312, 130];
    const x = (v) => left + (right - left) * (toX > fromX ? (v - fromX) / (toX - fromX) : 0.5);
    const y = (v) => bottom - (bottom - 12) * (toY > fromY ? (v - fromY) / (toY - fromY) : 0.5);
    const said = lines.map(({ kind, points: own }) =>
      `${kind}: ${brief(own[0][1])} at step ${brief(own[0][0])}, ${brief(own.at(-1)[1])} at step ${brief(own.at(-1)[0])}`).join("; ");
    const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}. ${said}. Least ${brief(fromY)}, most ${brief(toY)}.` },
      svg("path", { class: "axis", d: `M${left} 8V${bottom}H${right}` }),
      svg("text", { x: left - 5, y: toY > fromY ? 15 : y(toY) + 4, "text-anchor": "end" }, brief(toY)),
      svg("text", { x: left - 5, y: bottom, "text-anchor": "end" }, toY > fromY ? brief(fromY) : ""),
      svg("text", { x: left, y: height - 4 }, `step ${brief(fromX)}`),
      svg("text", { x: right, y: height - 4, "text-anchor": "end" }, toX > fromX ? brief(toX) : ""));
    lines.forEach(({ points: own }, i) => {
      const css = i ? "k1" : "k0";
      if (own.length > 1) drawn.append(svg("polyline", { class: css, points: own.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") }));
      else drawn.append(svg("circle", { class: css, cx: x(own[0][0]), cy: y(own[0][1]), r: 3 }));
    });
    return el("figure", {}, el("figcaption", {}, prm.visible(name), " ", el("span", {}, prm.visible(said))), drawn);
  }

  function showRun({ key }) {
    const run = index.runs.find((x) => x.name === key);
    if (!run) throw new Error(`there is no run ${key}`);
    page.replaceChildren(list("runs", key), el("h2", {}, prm.visible(run.name)),
      run.curves.length ? el("div", { class: "curves" }, ...run.curves.map(curve))
        : el("p", { class: "alert" }, "This run has recorded no number yet."));
  }

  function showEvaluation({ key }) {
    const found = index.evaluations.find((x) => x.name === key);
    if (!found) throw new Error(`there is no evaluation ${key}`);
    const isMade = ([name]) => /^(run|scored_by)(\.|$)/.test(name);
    page.replaceChildren(list("evaluations", key), el("h2", {}, prm.visible(found.name)),
      facts(found.lines.filter((x) => !isMade(x))),
      fold("How it was made", facts(found.lines.filter(isMade))));
  }

  /** Returns links to all runs, or to all evaluations. */
  function list(kind, key) {
    return el("nav", { class: "row", "aria-label": `All ${kind}` }, ...index[kind].map(({ name }) =>
      link(name, address(kind, name), name === key ? { "aria-current": "page" } : {})));
  }

  // --- Which page ---

  const KINDS = {
    samples: ["Samples", count("samples"), showSamples],
    searches: ["Searches", count("searches"), showSearches],
    runs: ["Runs", index.runs.length, showRun],
    evaluations: ["Evaluations", index.evaluations.length, showEvaluation],
  };
  const ONE = { sample: ["samples", showSample], search: ["searches", showSearch] };
  let isFirst = true;

  async function show() {
    const at = place();
    if (!at.kind) at.kind = Object.keys(KINDS).find((x) => KINDS[x][1]) || "samples";
    const all = (ONE[at.kind] || [at.kind])[0];
    document.getElementById("kinds").replaceChildren(
      ...Object.entries(KINDS).filter(([, x]) => x[1]).map(([kind, [label, num]]) =>
        link(`${label} ${number(num)}`, `#${kind}`, kind === all ? { "aria-current": "page" } : {})));
    if (["runs", "evaluations"].includes(at.kind) && at.key === "" && index[at.kind].length) {
      at.key = index[at.kind][0].name;
    }
    document.title = `${at.key || all} · prm-jax view`;
    let focus = null;
    try {
      const shows = (ONE[at.kind] || [])[1] || (KINDS[at.kind] || [])[2];
      if (!shows) throw new Error(`there is no page ${at.kind}`);
      focus = await shows(at);
    } catch (e) {
      page.replaceChildren(el("p", { class: "alert", role: "alert" }, prm.visible(e.message)), link("to the first page", "#"));
    }
    if (!isFirst || focus) {
      (focus || page).focus({ preventScroll: true });
      if (focus) focus.scrollIntoView({ block: "center" });
      else window.scrollTo(0, 0);
    }
    isFirst = false;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const press = (id) => {
      const there = document.getElementById(id);
      if (!there) return;
      event.preventDefault();
      if (there.matches("input")) there.focus();
      else there.click();
    };
    if (event.target.closest("select, textarea, input, .scroll:focus")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "/") press("text");
    else if (event.key === "ArrowLeft") press("previous");
    else if (event.key === "ArrowRight") press("next");
    else if (event.key === "Escape") press("up");
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const rows = [...page.querySelectorAll("a[data-row]")];
      if (!rows.length) return;
      event.preventDefault();
      const now = rows.indexOf(document.activeElement);
      const next = now < 0 ? 0 : now + (event.key === "ArrowDown" ? 1 : -1);
      rows[Math.max(0, Math.min(rows.length - 1, next))].focus();
    }
  });
  window.addEventListener("hashchange", show);
  show();
})();
