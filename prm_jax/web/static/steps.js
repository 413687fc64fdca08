// What all pages share, as the global `prm`: elements, texts with formulas, and
// steps with scores. Other people's texts only ever become text nodes.
"use strict";
const prm = (() => {
  // A formula of more characters, or after so many others, stays as it is written.
  const LONGEST_FORMULA = 2000;
  const MOST_FORMULAS = 400;

  /** Returns an element; children are elements and texts. */
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "class") made.className = value;
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    made.append(...children.filter((x) => x !== null && x !== undefined));
    return made;
  }

  /** Returns a text with characters that no eye sees as symbols. */
  function visible(text) {
    return text
      .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, (c) =>
        String.fromCharCode(0x2400 + c.charCodeAt(0)))
      .replace(/\u007f/g, "\u2421")
      .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
  }

  // How formulas are written: what opens and closes them, and whether they are
  // displayed.
  const MARKS = [
    ["$$", "$$", true],
    ["\\[", "\\]", true],
    ["\\(", "\\)", false],
    ["$", "$", false],
  ];

  /** Returns where a formula that begins at `start` ends; -1 if it is none. */
  function closing(text, start, close) {
    let depth = 0;
    const last = Math.min(text.length, start + LONGEST_FORMULA);
    for (let i = start; i < last; i++) {
      if (depth <= 0 && text.startsWith(close, i)) return i;
      if (text[i] === "\\") i++;
      else if (text[i] === "{") depth++;
      else if (text[i] === "}") depth--;
      else if (text[i] === "\n" && text[i + 1] === "\n") return -1;
    }
    return -1;
  }

  /**
   * Returns whether a pair of single dollars is a formula, by Pandoc's rule:
   * "$5 and $6" is none.
   */
  function isFormula(inner, after) {
    return !/^\s|\s$/.test(inner) && !/[0-9]/.test(after);
  }

  /**
   * Returns the pieces of a text in order: [text, null or is displayed, and of a
   * formula how it was written].
   */
  function pieces(text) {
    const found = [];
    let from = 0;
    let num = 0;
    for (let i = 0; i < text.length && num < MOST_FORMULAS; i++) {
      if (text[i] !== "$" && text[i] !== "\\") continue;
      const mark = MARKS.find(([open]) => text.startsWith(open, i));
      if (!mark) {
        if (text[i] === "\\") i++; // "\$" opens nothing.
        continue;
      }
      const [open, close, displayed] = mark;
      const begin = i + open.length;
      const end = closing(text, begin, close);
      if (end <= begin) continue;
      const inner = text.slice(begin, end);
      const after = text[end + close.length] || "";
      if (open === "$" && !isFormula(inner, after)) continue;
      if (i > from) found.push([text.slice(from, i), null]);
      from = end + close.length;
      found.push([inner, displayed, text.slice(i, from)]);
      i = from - 1;
      num++;
    }
    if (from < text.length) found.push([text.slice(from), null]);
    return found;
  }

  /** Fills a node with a text, its formulas drawn. */
  function text(node, given) {
    const whole = visible(String(given));
    node.replaceChildren();
    node.classList.add("text");
    for (const [piece, displayed, written] of pieces(whole)) {
      if (displayed === null) {
        node.append(piece);
        continue;
      }
      const drawn = document.createElement("span");
      try {
        katex.render(piece, drawn, {
          displayMode: displayed,
          maxExpand: 200,
          maxSize: 10,
          strict: "ignore",
          trust: false,
        });
        node.append(drawn);
      } catch {
        node.append(written);
      }
    }
    return node;
  }

  /** Returns a number as Python writes it, whose ties go to the even digit. */
  function fixed(x, digits) {
    const up = x.toFixed(digits);
    const isTie = /^50*$/.test(x.toFixed(digits + 30).slice(-30));
    if (!isTie || /[02468]$/.test(up)) return up;
    return (Number(up) - Math.sign(x) * 10 ** -digits).toFixed(digits);
  }

  const shown = (score) => fixed(score, 3);

  /** Returns a score's log-odds, with their sign: the model's own if they are known. */
  function logOdds(model, i) {
    const own = model.logits && model.logits[i];
    const score = model.scores[i];
    const odds = typeof own === "number" ? own : Math.log(score / (1 - score));
    if (!Number.isFinite(odds)) return `${odds < 0 ? "\u2212" : "+"}\u221e`;
    return (odds < 0 ? "\u2212" : "+") + fixed(Math.abs(odds), 2);
  }

  /** Colours an element by a score: the further from the threshold, the more. */
  function colour(node, score, threshold) {
    const good = score >= threshold;
    node.classList.add(good ? "good" : "bad");
    const most = good ? 0.28 : 0.38;
    const width = good ? 1 - threshold : threshold;
    const share = width > 0 ? Math.abs(score - threshold) / width : 1;
    node.style.setProperty("--strength", (0.07 + most * share).toFixed(3));
  }

  const isJudged = (model, i) => !model.judged || model.judged[i];
  const has = (model, i) =>
    model.scores && model.scores[i] !== null && model.scores[i] !== undefined;

  /** Returns the first judged step that a model doubts; -1 if there is none. */
  function firstDoubted(model, threshold) {
    return (model.scores || []).findIndex(
      (score, i) => has(model, i) && isJudged(model, i) && score < threshold);
  }

  /** Returns in words which step each model doubts first. */
  function verdict(models, threshold) {
    const known = models.filter((x) => x.scores && x.scores.length);
    return known.map((model) => {
      const first = firstDoubted(model, threshold);
      const who = known.length > 1 ? `${model.name}: ` : "";
      if (first < 0) return `${who}no step is doubted`;
      return `${who}first doubted step: ${first + 1} (score ${shown(model.scores[first])})`;
    }).join("; ");
  }

  /** Returns what is said of a step's score, after it. */
  function details(model, i) {
    if (!has(model, i)) return "no score";
    const judged = isJudged(model, i) ? "" : ", not judged: it isn't trained for this step";
    return `log-odds ${logOdds(model, i)}${judged}`;
  }

  /** Returns what is said of a step by a model, in words. */
  function said(model, i) {
    const score = has(model, i) ? `score ${shown(model.scores[i])}, ` : "";
    return `${model.name}: ${score}${details(model, i)}`;
  }

  function chip(model, i, threshold) {
    const made = element("span", { class: "chip", title: model.name },
      element("span", { class: "hidden" }, `${model.name} `));
    made.append(has(model, i) ? shown(model.scores[i]) : "\u2013");
    if (!has(model, i) || !isJudged(model, i)) made.classList.add("unjudged");
    else colour(made, model.scores[i], threshold);
    const before = model.before && model.before[i];
    if (has(model, i) && typeof before === "number" && shown(before) !== shown(model.scores[i])) {
      const by = model.scores[i] - before;
      made.append(` (${by < 0 ? "\u2212" : "+"}${shown(Math.abs(by))})`);
    }
    made.append(element("span", { class: "hidden" }, `, ${details(model, i)}`));
    return made;
  }

  const LABELS = {
    true: ["\u2713", "right", "labelled right"],
    false: ["\u2717", "wrong", "labelled wrong"],
  };

  /**
   * Returns a list of steps, coloured by the first model's scores.
   *
   * given: steps: texts; models: [{name, scores, judged, before}], of which
   * scores may hold null, judged and before (earlier scores) may be missing;
   * labels: of each step true, false or null; threshold; extra(i): an element
   * beside the scores of step i.
   */
  function stepList(given) {
    const { steps, models = [], labels = null, extra = null } = given;
    const threshold = given.threshold ?? 0.5;
    const leading = models[0] || { name: "", scores: [] };
    const first = firstDoubted(leading, threshold);
    const list = element("ol", { class: "steps" });
    steps.forEach((step, i) => {
      const row = element("li", { class: "step", tabindex: "0" });
      if (has(leading, i) && isJudged(leading, i)) colour(row, leading.scores[i], threshold);
      else row.classList.add("unjudged");
      if (i === first) row.classList.add("first");
      const number = element("span", { class: "number" },
        element("span", { class: "hidden" }, "step "), String(i + 1));
      const chips = element("span", { class: "chips" });
      if (labels && labels[i] !== null && labels[i] !== undefined) {
        const [mark, css, words] = LABELS[labels[i]];
        chips.append(element("span", { class: `label ${css}`, title: words },
          element("span", { "aria-hidden": "true" }, mark),
          element("span", { class: "hidden" }, words)));
      }
      for (const model of models) chips.append(chip(model, i, threshold));
      if (i === first) chips.append(element("span", { class: "hidden" }, "the first doubted step"));
      if (extra) chips.append(extra(i));
      // For eyes alone: the scores above say it, too.
      const detail = element("p", { class: "detail", "aria-hidden": "true" });
      detail.append(`Step ${i + 1}: ${models.map((model) => said(model, i)).join(" \u00b7 ")}`
        + (i === first ? " \u00b7 the first doubted step" : ""));
      if (!models.length) detail.hidden = true;
      row.append(number, text(element("div"), step), chips, detail);
      list.append(row);
    });
    return list;
  }

  return { colour, element, fixed, text, visible, stepList, verdict, shown };
})();
