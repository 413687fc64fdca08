// The page on which people judge: one key is one judgement, and what is shown is
// what the server has kept.
"use strict";
(() => {
  const { element } = prm;
  const { Refused, askUntilAnswered } = calls;
  const find = (id) => document.getElementById(id);
  // Where this tab has its key, its item and the item before.
  const KEY = "prm-label-key";
  const NOW = "prm-label-now";
  const BEFORE = "prm-label-before";
  const RATINGS = { 1: -1, 2: 0, 3: 1 };
  // How a rating is shown: a mark, a word, which is its class, too.
  const SHOWN = new Map([[-1, ["\u2717", "wrong"]], [0, ["\u25cb", "neutral"]], [1, ["\u2713", "right"]]]);
  const HOW = {
    first_error: "Judge the steps in their order, up to the first wrong one; what comes after it isn't judged.",
    per_step: "Judge every step, in any order.",
    alternatives: "Rate the ways to go on, then take one that isn't wrong, or write a step of your own.",
    pairs: "Which of the two solutions is better?",
  };

  let item = null; // As the server sent it; null while there is none.
  let ratings = new Map(); // Of the item, by "step,alternative".
  let rows = []; // What the cursor moves over: {node, tags} of each.
  let cursor = 0;
  let built = ""; // Of which item and path the rows are.
  let busy = false; // Whether an answer is waited for,
  let late = false; // and whether it doesn't come.
  const waiting = []; // Keys that were pressed meanwhile.
  const ofAlternatives = alternatives({
    item: () => item,
    cursor: () => cursor,
    rating: () => ratings.get(placeOf(cursor)),
    isBusy: () => busy,
    ...{ focusRow, judge, rowName: (i) => rowName(i), run, say: (words) => say(words), show, stepRow },
  });

  // --- What is said ----------------------------------------------------------------

  function tell(id, words) {
    const box = find(id);
    box.hidden = !words;
    box.textContent = prm.visible(words);
  }

  /** Says what went wrong; what isn't kept then stays here unless one forgets it. */
  function tellError(words) {
    tell("error", words);
    find("forget").hidden = !words || !calls.remembered().length;
  }

  const say = (words) => { find("said").textContent = prm.visible(words); };
  const capital = (words) => words[0].toUpperCase() + words.slice(1);
  const letter = (i) => (i < 26 ? String.fromCharCode(65 + i) : String(i + 1));
  const rowName = (i) => (item.task === "alternatives" ? `Alternative ${letter(i)}` : `Step ${i + 1}`);

  /** Does something that waits for the server; then the keys that wait for it. */
  async function run(action) {
    busy = true;
    tellError("");
    try {
      await action();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      waiting.length = 0;
      say("");
      tellError(error.message);
      if (error.status === 401) askKey();
    } finally {
      busy = false;
    }
    while (waiting.length && !busy) press(waiting.shift());
  }

  // --- Items -------------------------------------------------------------------------

  /** Loads the item that this person judges next. */
  async function loadNext() {
    const reply = await askUntilAnswered("/v1/label/next", undefined, "The next item isn't here yet");
    find("done").textContent = `${reply.ended} done`;
    waiting.length = 0; // Nobody judges what isn't seen yet.
    if (reply.item) {
      show(reply.item);
      return;
    }
    item = null;
    show(null);
    say(`Nothing is left to judge. You have done ${reply.ended}. Thank you!`);
  }

  function next() {
    if (item) sessionStorage.setItem(BEFORE, item.id);
    return run(async () => {
      say("");
      await loadNext();
    });
  }

  /** Sends what an earlier page left, and shows its item, or else the next. */
  const start = () => run(async () => {
    const refused = [];
    let last = null;
    for (const left of calls.remembered()) {
      try {
        last = await calls.keep(left);
        say(`${left.words}, kept.`);
      } catch (error) {
        if (!(error instanceof Refused) || error.status === 401) throw error;
        refused.push(error.message);
      }
    }
    const shown = sessionStorage.getItem(NOW);
    if (last) show(last);
    else await loadNext();
    // An item that had ended when the page was loaded again can still be undone.
    if (shown && !(item && item.id === shown)) sessionStorage.setItem(BEFORE, shown);
    tellError(refused.join("\n"));
  });

  /** Sends a judgement of the item and shows the item after it. */
  function judge(event, words) {
    const made = calls.judgement(item, event, words);
    return run(async () => {
      try {
        show(await calls.keep(made), event);
      } catch (error) {
        if (error.status !== 409) throw error;
        show(await askUntilAnswered(calls.pathOf(item.id), undefined, "The item isn't here yet"));
        throw new Refused(`${words}: not kept. The item was judged elsewhere in between; this is how it stands now.`, 409);
      }
      say(`${words}, kept.`);
      if (event.kind === "write") ofAlternatives.closeWrite();
    });
  }

  const isUntouched = ({ state }) =>
    !state.ratings.length && !state.flags.length && !state.path.length && state.reason === null;

  /** Takes back the last judgement; before the first, shows the item before. */
  function undo() {
    const before = sessionStorage.getItem(BEFORE);
    if (item && !isUntouched(item)) return judge({ kind: "undo" }, "Undo");
    if (!before || (item && item.id === before)) return say("There is nothing to undo.");
    return run(async () => {
      show(await askUntilAnswered(calls.pathOf(before), undefined, "The item before isn't here yet"));
      say("This is the item before. u takes back its last judgement, n goes on.");
    });
  }

  // --- Keys ----------------------------------------------------------------------------

  /** Returns the step and the alternative of a row. */
  const stepOf = (row) => (item.task === "alternatives" ? [item.state.path.length, row] : [row, 0]);
  const placeOf = (row) => stepOf(row).join();

  function here() {
    const [step, alternative] = stepOf(cursor);
    return { step, alternative };
  }

  const isFlagged = (row) => item.state.flags.some((x) => x.join() === placeOf(row));

  function rate(pressed) {
    if (cursor >= rows.length) return say("There is nothing to rate here.");
    if (item.task === "first_error" && cursor !== ratings.size) {
      return say(`Step ${ratings.size + 1} is judged next. If step ${cursor + 1} is the first wrong one, press e.`);
    }
    const rating = RATINGS[pressed];
    return judge({ kind: "rate", ...here(), rating }, `${rowName(cursor)}: ${SHOWN.get(rating)[1]}`);
  }

  function flag() {
    if (cursor >= rows.length) return say("There is no step here.");
    return judge({ kind: "flag", ...here() },
      `${rowName(cursor)}: ${isFlagged(cursor) ? "no longer badly split" : "badly split"}`);
  }

  function firstError() {
    if (cursor < ratings.size) return say(`Step ${cursor + 1} is judged already; u takes back the last judgement.`);
    return judge({ kind: "error", step: cursor }, `Step ${cursor + 1}: the first wrong one`);
  }

  const prefer = (solution, words) => () => judge({ kind: "prefer", solution }, words);
  const end = (reason, words) => () => judge({ kind: "end", reason }, words);

  // Of each task: the key, what its button says, what it does in a sentence, and
  // what it does.
  const RATE = [
    ["1", "wrong", "The step is wrong, or can't be checked in thirty seconds.", rate],
    ["2", "neutral", "The step is neither.", rate],
    ["3", "right", "The step is right and helps.", rate],
  ];
  const FLAG = ["f", "badly split", "The step begins or ends at a wrong place; again takes it back.", flag];
  const KEYS = {
    first_error: [
      ...RATE,
      ["e", "first wrong", "The marked step is the first wrong one; those before it are right.", firstError],
      ["a", "rest is right", "All further steps are right.", () => judge({ kind: "right" }, "All further steps: right")],
      FLAG,
    ],
    per_step: [...RATE, FLAG],
    alternatives: [
      ...RATE,
      ["Enter", "take it", "Goes on with the marked alternative.", () => ofAlternatives.take()],
      ["w", "write", "Goes on with a step of your own.", () => ofAlternatives.openWrite()],
      ["d", "draw more", "Has a model write more next steps.", () => ofAlternatives.draw()],
      ["a", "complete", "The steps so far are the whole solution.", end("solution", "The solution: complete")],
      ["e", "none is right", "There is no right way to go on.", end("found_error", "No way to go on: right")],
      FLAG,
    ],
    pairs: [
      ["1", "first", "The first solution is better.", prefer(0, "The first solution: better")],
      ["2", "second", "The second solution is better.", prefer(1, "The second solution: better")],
      ["0", "neither", "Neither is better.", prefer(null, "Neither solution: better")],
    ],
  };
  const UNDO = ["u", "undo", "Takes back the last judgement, also after the last step.", undo];
  const ALWAYS = [
    ["b", "bad problem", "The problem can't be understood, or has no answer.", end("bad_problem", "A bad problem")],
    ["g", "give up", "You can't judge this one.", end("give_up", "Given up")],
    UNDO,
  ];
  const NEXT = ["n", "next", "Goes to the next item after the last judgement, as Enter does.", next];
  const ENDED = [NEXT, UNDO];
  const OF_ANY_TASK = new Set([...Object.values(KEYS).flat(), ...ALWAYS, NEXT].map(([x]) => x));
  const MOVES = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 };

  /** Returns the keys that do something now. */
  function keys() {
    return item && item.state.reason === null ? [...ofTask(), ...ALWAYS] : ENDED;
  }

  /** Returns the keys of the item's task; without a model nothing can be drawn. */
  function ofTask() {
    return item ? KEYS[item.task].filter(([x]) => x !== "d" || item.draws) : [];
  }

  /** Returns whether there is a row that the cursor may move to. */
  const canMove = () => item && item.task !== "pairs" && item.state.reason === null && rows.length > 0;

  function press(pressed) {
    if (MOVES[pressed] && (late || !busy)) return move(cursor + MOVES[pressed]);
    if (late) return say("Wait until the server answers: it hasn't kept the last judgement yet.");
    if (busy) return waiting.push(pressed);
    const name = pressed === "Enter" && (!item || item.state.reason !== null) ? "n" : pressed;
    const known = keys().find(([x]) => x === name);
    if (known) return known[3](name);
    if (name === "n") say("This item isn't judged yet. g gives it up.");
    return undefined;
  }

  /** Returns whether a key is for a control of the page, and no judgement. */
  function isControls(event) {
    const { target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return true;
    if (target.closest("input, textarea, dialog")) return true;
    return target.closest("button") && ["Enter", " "].includes(event.key);
  }

  document.addEventListener("keydown", (event) => {
    if (isControls(event)) return;
    const pressed = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (pressed === "?") {
      event.preventDefault();
      openHelp();
      return;
    }
    if (MOVES[pressed] ? !canMove() : !OF_ANY_TASK.has(pressed)) return;
    event.preventDefault();
    // A key that is held down is one judgement.
    if (MOVES[pressed] || !event.repeat) press(pressed);
  });

  function openHelp() {
    const known = [...ofTask(), ...ALWAYS, NEXT];
    const moves = [["j / \u2193", "", "Marks the next step."], ["k / \u2191", "", "Marks the step before."]];
    find("help-keys").replaceChildren(...[...known, ...(canMove() ? moves : [])].flatMap(([name, , words]) =>
      [element("dt", {}, element("kbd", {}, name)), element("dd", {}, words)]));
    find("help").showModal();
  }

  // --- Showing --------------------------------------------------------------------------

  /** Shows an item, after an event of it if one is given. */
  function show(given, event = null) {
    const before = item;
    const ratingsBefore = ratings;
    item = given;
    if (item) sessionStorage.setItem(NOW, item.id);
    ratings = new Map((item ? item.state.ratings : []).map(([i, j, x]) => [`${i},${j}`, x]));
    if (!before || !item || before.id !== item.id) calls.takeSeconds();
    const name = item ? JSON.stringify([item.id, item.state.path]) : "";
    const isNew = name !== built;
    built = name;
    if (isNew) build();
    else if (item && item.task === "alternatives") {
      addRows(item.alternatives.slice(rows.length), letter);
      ofAlternatives.tell(before);
    }
    if (item) cursor = isNew ? openRow(0) : cursorAfter(event, ratingsBefore);
    update();
    ofAlternatives.watch();
  }

  /** Returns the row to judge after an event. */
  function cursorAfter(event, ratingsBefore) {
    if (event && ["flag", "draw"].includes(event.kind)) return cursor;
    if (!event || item.task === "first_error") return openRow(0);
    if (event.kind !== "undo") return openRow(cursor);
    const changed = rows.findIndex((_, i) => ratings.get(placeOf(i)) !== ratingsBefore.get(placeOf(i)));
    return changed < 0 ? cursor : changed;
  }

  /** Returns the first row without a rating, from one on and around. */
  function openRow(from) {
    const of = rows.map((_, i) => ratings.get(placeOf(i)));
    for (let i = 0; i < of.length; i++) {
      const row = (from + i) % of.length;
      if (of[row] === undefined) return row;
    }
    if (item.task !== "alternatives") return Math.max(0, Math.min(from, of.length - 1));
    // All are rated: the first of the best is what one takes.
    return Math.max(0, of.indexOf(Math.max(...of)));
  }

  function stepRow(label, text) {
    const node = element("li", { class: "step" });
    const tags = element("span", { class: "chips" });
    node.append(element("span", { class: "number" }, element("span", { class: "hidden" }, "step "), label),
      prm.text(element("div"), text), tags);
    return { node, tags };
  }

  function turn(role, text) {
    return element("li", { class: "turn" }, element("b", { class: "text" }, prm.visible(role)),
      prm.text(element("div"), text));
  }

  /** Returns the nodes of a conversation, the rows of its steps in their turns. */
  function turns(messages, steps, made) {
    const nodes = [];
    let num = 0;
    for (const [role, text] of messages) {
      const first = num;
      let from = 0;
      while (role === "assistant" && num < steps.length) {
        const at = text.indexOf(steps[num].trim(), from);
        if (at < 0) break;
        from = at + steps[num].trim().length;
        nodes.push(made[num++].node);
      }
      if (num === first) nodes.push(turn(role, text));
    }
    return [...nodes, ...made.slice(num).map((x) => x.node)];
  }

  /** Makes the rows of the item. */
  function build() {
    find("work").hidden = !item;
    find("work-title").textContent = item ? "Problem" : "Nothing is left";
    find("lists").replaceChildren();
    find("lists").className = "";
    find("path-part").hidden = true;
    find("drawn").textContent = "";
    find("write").hidden = true;
    rows = [];
    if (!item) return;
    const { task } = item;
    const { steps, messages } = item.solutions[0] || { steps: [], messages: [] };
    const isPair = task === "pairs";
    find("rules").hidden = isPair;
    find("pair-rules").hidden = !isPair;
    find("how").textContent = item.others && item.others.length
      ? `${item.others.length} people disagree (${item.others.map((_, k) => letter(k)).join(", ")}): decide. ${HOW[task]}` : HOW[task];
    prm.text(find("problem"), item.problem);
    // A conversation begins with its problem.
    const isTold = messages.some(([role, text]) => role !== "assistant" && text && item.problem.includes(text));
    find("problem").hidden = isTold;
    if (isTold) find("work-title").textContent = "Conversation";
    const title = find("list-title");
    title.hidden = isPair || isTold;
    if (isPair) {
      find("lists").className = "pair";
      find("lists").append(...item.solutions.map((solution, i) => {
        const made = solution.steps.map((text, j) => stepRow(String(j + 1), text));
        rows.push(...made);
        return element("section", {}, element("h3", {}, i ? "Second solution " : "First solution ",
          element("span", { class: "rating right" })),
        element("ol", { class: "steps" }, ...(solution.messages.length
          ? turns(solution.messages, solution.steps, made) : made.map((x) => x.node))));
      }));
      return;
    }
    if (task === "alternatives") {
      find("lists").append(element("ol", { class: "steps" }));
      addRows(item.alternatives, letter);
      ofAlternatives.build();
    } else {
      title.textContent = "Solution";
      find("lists").append(element("ol", { class: "steps" }));
      addRows(steps, (i) => String(i + 1));
      if (messages.length) find("lists").firstChild.replaceChildren(...turns(messages, steps, rows));
    }
  }

  /** Adds rows that the cursor moves over. */
  function addRows(texts, labelOf) {
    for (const text of texts) {
      const place = rows.length;
      const row = stepRow(labelOf(place), text);
      row.node.addEventListener("click", () => move(place));
      rows.push(row);
      find("lists").firstChild.append(row.node);
    }
  }

  function chip(name, score) {
    const made = element("span", { class: "chip", title: name },
      element("span", { class: "hidden" }, `${name} `), prm.shown(score));
    prm.colour(made, score, 0.5);
    return made;
  }

  /** Shows what is judged, and where the cursor is. */
  function update() {
    const isOpen = item !== null && item.state.reason === null;
    // Models score the steps of one solution.
    const isOne = item && !["alternatives", "pairs"].includes(item.task);
    const scores = isOne && item.scores ? Object.entries(item.scores) : [];
    rows.forEach((row, i) => {
      const isPair = item.task === "pairs";
      const isCurrent = isOpen && i === cursor && !isPair;
      const rating = ratings.get(placeOf(i));
      const isLater = item.task === "first_error" && rating === undefined && !isCurrent;
      const [mark, word] = SHOWN.get(rating) || ["", ""];
      row.node.className = ["step", word, isCurrent && "current", isLater && "later"].filter(Boolean).join(" ");
      if (!isPair) row.node.setAttribute("tabindex", isCurrent ? "0" : "-1");
      if (isCurrent) row.node.setAttribute("aria-current", "step");
      else row.node.removeAttribute("aria-current");
      row.tags.replaceChildren();
      if (word) {
        row.tags.append(element("span", { class: `rating ${word}` },
          element("span", { "aria-hidden": "true" }, `${mark} `), word));
      } else if (!isPair) row.tags.append(element("span", { class: "hidden" }, "not judged"));
      (item.others || []).forEach((of, k) => {
        const [sign, said] = SHOWN.get(of[i]) || ["", "not judged"];
        row.tags.append(element("span", { class: `rating other ${said}` }, `${letter(k)}: `,
          element("span", { "aria-hidden": "true" }, `${sign} `), said));
      });
      if (isFlagged(i)) row.tags.append(element("span", { class: "rating flag" }, "\u2702 badly split"));
      if (item.ends && item.ends[i]) row.tags.append(element("span", { class: "chip" }, "ends the solution"));
      for (const [name, of] of scores) {
        if (typeof of[i] === "number") row.tags.append(chip(prm.visible(name), of[i]));
      }
    });
    if (item && item.task === "pairs") {
      find("lists").querySelectorAll("h3 .rating").forEach((node, i) => {
        node.textContent = !isOpen && item.state.preferred === i ? "\u2713 better" : "";
      });
    }
    tell("outcome", item && !isOpen ? outcome(scores) : "");
    showButtons();
    if (isOpen) focusRow();
  }

  /** Returns how the item ended, and what models say of it. */
  function outcome(scores) {
    const { reason, preferred, path: taken } = item.state;
    const num = (rating) => [...ratings.values()].filter((x) => x === rating).length;
    const length = taken.length === 1 ? "1 step" : `${taken.length} steps`;
    const ends = {
      bad_problem: () => "A bad problem.",
      give_up: () => "Given up.",
      found_error: () => (item.task === "alternatives" ? `It ends after ${length}: no way to go on is right.`
        : `The first wrong step is step ${[...ratings.values()].indexOf(-1) + 1}.`),
      solution: () => ({
        first_error: () => "No step is wrong.",
        per_step: () => `All steps are judged: ${num(1)} right, ${num(0)} neutral, ${num(-1)} wrong.`,
        alternatives: () => `The solution is complete: ${length}.`,
        pairs: () => (preferred === null ? "Neither solution is better."
          : `The ${preferred ? "second" : "first"} solution is better.`),
      })[item.task](),
    };
    const models = scores.filter(([, of]) => of.every((x) => typeof x === "number"))
      .map(([name, of]) => ({ name, scores: of }));
    if (!models.length) return ends[reason]();
    const names = models.length > 1 ? "" : `${models[0].name}: `;
    return `${ends[reason]()} ${names}${prm.verdict(models, 0.5)}.`;
  }

  function showButtons() {
    const box = find("buttons");
    const known = keys();
    const names = known.map(([x, label]) => x + label).join();
    if (box.dataset.names === names) return;
    box.dataset.names = names;
    box.replaceChildren(...known.map((entry) => {
      const [name, label] = entry;
      return element("button", {
        type: "button", class: entry === NEXT ? "main" : null, "aria-keyshortcuts": name, onclick: () => press(name),
      }, element("kbd", {}, name), ` ${label}`);
    }));
    // Not to a judgement: a second Enter would be one.
    if (known === ENDED) box.querySelector("button").focus({ preventScroll: true });
  }

  function move(to) {
    if (!canMove()) return;
    cursor = Math.max(0, Math.min(to, rows.length - 1));
    update();
  }

  /** Brings the marked row into view, and the focus to it unless a control has it. */
  function focusRow() {
    const row = item && item.task !== "pairs" && rows[cursor];
    if (!row || !find("write").hidden) return;
    const held = document.activeElement;
    if (!held || !held.closest("button, input, textarea, dialog")) row.node.focus({ preventScroll: true });
    row.node.scrollIntoView({ block: "nearest" });
  }

  // --- The key and the dialog -------------------------------------------------------

  function askKey() {
    find("key-form").hidden = false;
    find("key").focus();
  }

  function useKey(key) {
    calls.begin(key, (words) => {
      late = words !== "";
      if (late) waiting.length = 0;
      tell("late", words);
    });
    find("key-form").hidden = true;
    start();
  }

  /** Takes the key of the address, where it doesn't stay. */
  function readAddress() {
    const given = /^#key=(.+)/.exec(location.hash);
    if (!given) return;
    sessionStorage.setItem(KEY, given[1]);
    history.replaceState(null, "", location.pathname);
  }

  find("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = find("key").value.trim();
    find("key").value = "";
    if (busy) return;
    sessionStorage.setItem(KEY, given);
    useKey(given);
  });
  find("forget").addEventListener("click", () => {
    calls.forget();
    tellError("");
  });
  find("open-help").addEventListener("click", openHelp);
  find("close-help").addEventListener("click", () => find("help").close());
  find("help").addEventListener("keydown", (event) => {
    if (event.key === "?") find("help").close();
  });
  // A judgement with a mouse leaves the focus to the keys.
  find("bar").addEventListener("mousedown", (event) => event.preventDefault());
  addEventListener("hashchange", () => location.reload());
  let known;
  try {
    readAddress();
    known = sessionStorage.getItem(KEY);
  } catch {
    tell("error", "This page keeps a judgement in the browser until the server has it; let it store data.");
    return;
  }
  if (known) useKey(known);
  else askKey();
})();
