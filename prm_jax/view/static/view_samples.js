// The table of samples, and the page of each.
"use strict";
view.samples = (() => {
  const { element: el, text } = prm;
  const {
    address, by, chunk, control, count, facts, fold, index, item, keys, link, mark,
    neighbours, number, outcomeMark, page, place, rowsOf, select, short, sortOf, table,
    THRESHOLD,
  } = view;
  const PAGE_ROWS = 100;

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

  // --- One sample ---

  function side(sample, model) {
    const others = sample.models.filter((x) => x !== model);
    const made = el("section", { "aria-label": model ? model.name : "Steps" });
    if (model) {
      made.append(el("h3", {}, prm.visible(model.name)),
        el("p", { class: "verdict" }, model.text));
    }
    const labels = sample.truth.some((x) => x !== null) ? sample.truth : null;
    const steps = sample.steps.map((x) => x || "(no text is given)");
    const notes = (i) => el("span", { class: "notes" }, ...sample.notes[i].map((x) => el("span", { class: "mark" }, x)));
    if (!steps.length) made.append(el("p", { class: "note" }, "This solution has no step."));
    made.append(prm.stepList({ steps, models: model ? [model] : [], labels, threshold: THRESHOLD, extra: notes }));
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
    const more = sample.sections.map(view.pages.section);
    const sources = Object.entries(sample.labels);
    if (sources.length > 1) {
      const labels = fold("Labels by source", table("Labels by source",
        [{ label: "step", number: true, cell: (i) => String(i + 1) },
          ...sources.map(([name, values]) => ({ label: prm.visible(name), number: true,
            cell: (i) => values[i] === null ? "–" : String(+prm.fixed(values[i], 3)) }))],
        sample.steps.map((_, i) => i)));
      labels.open = !!data.labels_disagree[row];
      more.push(labels);
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

  return { all: showSamples, one: showSample };
})();
