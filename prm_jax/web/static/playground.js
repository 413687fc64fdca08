// The playground: reads what a person writes, asks this server for its scores,
// and shows them. Nothing is stored: the input is in the page and, if a person
// asks for it, in the part of a link that no server is sent.
"use strict";
(() => {
  const { element } = prm;
  const find = (id) => document.getElementById(id);
  const KINDS = ["paragraph", "line", "sentence", "numbered", "markers", "tokens"];
  const ROLES = ["system", "user", "assistant", "tool"];
  // What all browsers, and most programs that pass links on, take.
  const LONGEST_LINK = 64000;
  const EXAMPLE = {
    problem: "A box holds $4$ pens. Tom buys 3 boxes and gives away 5 pens. How many pens are left?",
    text: "Three boxes hold $3 \\times 4 = 12$ pens.\n\nHe gives away 5, so $12 - 5 = 8$ are left.\n\nThe answer is $\\boxed{8}$.",
  };

  // The models of the server; of each that is chosen its scores, beside which the
  // earlier ones are kept while a person changes steps.
  let served = [];
  let key = "";
  let messages = [{ role: "user", content: "" }, { role: "assistant", content: "" }];
  let shown = null; // {steps, models: [{name, scores, judged, before}], item, solution}
  let asked = 0; // The number of the request whose replies are wanted.
  let address = ""; // The part of the address that holds the input, if one does.

  // --- The server ------------------------------------------------------------

  class Refused extends Error {
    constructor(message, status) {
      super(message);
      this.status = status;
    }
  }

  /** Returns a reply's JSON; what goes wrong is said in one sentence. */
  async function ask(path, body) {
    const headers = {};
    if (key) headers.Authorization = `Bearer ${key}`;
    const request = { headers, cache: "no-store", credentials: "omit" };
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      request.method = "POST";
      request.body = JSON.stringify(body);
    }
    let reply;
    try {
      reply = await fetch(path, request);
    } catch {
      throw new Refused("The server doesn't answer. Does it still run?", 0);
    }
    let record;
    try {
      record = await reply.json();
    } catch {
      throw new Refused(`The server's reply (status ${reply.status}) can't be read.`, reply.status);
    }
    if (reply.ok) return record;
    const error = (record && record.error) || {};
    const place = String(error.param || "").split(".").pop();
    const isNamed = String(error.message).startsWith(place);
    const where = place && !isNamed ? `${error.param}: ` : "";
    const after = reply.headers.get("Retry-After");
    const later = after ? ` (in ${after} s)` : "";
    throw new Refused(`${where}${error.message || `status ${reply.status}`}${later}`, reply.status);
  }

  function fail(error) {
    if (error.status === 401) {
      askKey(key && "The server doesn't take this key; check it.");
      return;
    }
    const box = find("error");
    box.hidden = false;
    box.textContent = prm.visible(error.message);
    intoView(box);
  }

  /** Asks for a key; says what is wrong with the one that was given, if any. */
  function askKey(wrong) {
    find("key-form").hidden = false;
    find("key-error").hidden = !wrong;
    find("key-error").textContent = wrong;
    find("key").focus();
  }

  /** Scrolls to an element that is out of sight, or so low that little is below. */
  function intoView(node) {
    const { top } = node.getBoundingClientRect();
    if (top >= 0 && top < window.innerHeight / 2) return;
    const isCalm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    node.scrollIntoView({ behavior: isCalm ? "auto" : "smooth" });
  }

  /** Asks once which models there are; returns whether it is known. */
  async function loadModels() {
    find("error").hidden = true;
    let data;
    try {
      ({ data } = await ask("/v1/models"));
    } catch (error) {
      fail(error);
      const again = element("button", {
        type: "button",
        onclick: async () => { if (await loadModels()) find("problem").focus(); },
      }, "Try again");
      if (error.status !== 401) find("error").append(" ", again);
      return false;
    }
    if (served.length) return true;
    served = data;
    const box = find("models");
    box.replaceChildren(element("legend", {}, served.length > 1 ? "Models" : "Model"));
    const row = element("div", { class: "row" });
    served.forEach((model, i) => {
      const input = element("input", { type: "checkbox", name: "model", value: model.id });
      input.checked = i === 0 || served.length <= 3;
      row.append(element("label", {}, input, " ",
        element("span", { class: "text" }, prm.visible(model.id)), ` (${model.kind})`));
    });
    box.append(row);
    find("turns-choice").hidden = !readTurns();
    fillSegmenters();
    if (!isBlank() || !readLink()) show(kind());
    return true;
  }

  const isReady = async () => served.length > 0 || loadModels();
  const readTurns = () => served.some((model) => model.reads_turns);

  const chosenModels = () =>
    [...document.querySelectorAll('input[name="model"]')].filter((x) => x.checked)
      .map((x) => served.find((model) => model.id === x.value));

  // --- What is asked for -----------------------------------------------------

  const kind = () => document.querySelector('input[name="kind"]:checked').value;

  function show(chosen) {
    document.querySelector(`input[name="kind"][value="${chosen}"]`).checked = true;
    for (const name of ["text", "steps", "messages"]) find(`part-${name}`).hidden = name !== chosen;
    find("problem-part").hidden = chosen === "messages";
    if (chosen === "steps" && !find("step-list").children.length) setSteps([""]);
    // What is hidden has no height to grow to.
    if (chosen === "steps") find("step-list").querySelectorAll("textarea").forEach(grow);
    if (chosen === "messages" && !find("message-list").children.length) showMessages();
  }

  function fillSegmenters() {
    const own = [...new Set(served.map((model) => model.segmenter).filter(Boolean))];
    const select = find("segmenter");
    select.replaceChildren();
    if (own.length) {
      const name = own.length === 1 ? own[0] : "each its own";
      select.append(element("option", { value: "" }, `the model's training: ${name}`));
    }
    for (const name of KINDS) select.append(element("option", { value: name }, name));
    tellSegmenter();
  }

  function tellSegmenter() {
    const chosen = find("segmenter").value;
    find("tokens-part").hidden = chosen !== "tokens";
    const others = chosenModels().filter((x) => x.segmenter && x.segmenter !== segmenter());
    const note = find("segmenter-note");
    note.hidden = !chosen || !others.length;
    note.textContent = others.length
      ? `${others[0].id} was trained on steps cut by ${others[0].segmenter}: it reads these as steps of their own.` : "";
  }

  function segmenter() {
    const chosen = find("segmenter").value;
    return chosen === "tokens" ? `tokens:${find("num-tokens").value}` : chosen;
  }

  /** Refuses a number of tokens that is none. */
  function checkTokens() {
    const num = find("num-tokens").value;
    if (find("segmenter").value === "tokens" && !/^[1-9][0-9]{0,3}$/.test(num)) {
      throw new Refused("Steps of tokens need a whole number of them, from 1 to 9999.", 0);
    }
  }

  /** Takes away what was scored before, so that it isn't taken for the new. */
  function clearShown() {
    find("result").replaceChildren();
    for (const id of ["shown-problem", "order", "hint", "share", "curl-part", "python-part"]) find(id).hidden = true;
  }

  /** Has an area grow with its text. */
  function grow(area) {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 400)}px`;
  }

  function numberParts(list, noun) {
    [...list.children].forEach((row, i) => {
      row.querySelector("textarea").setAttribute("aria-label", `${noun} ${i + 1}`);
      row.querySelector("button").setAttribute("aria-label", `Remove ${noun.toLowerCase()} ${i + 1}`);
    });
  }

  function stepRow(text) {
    const area = element("textarea", { rows: "2", spellcheck: "false", oninput: () => grow(area) });
    area.value = text;
    const row = element("li", {}, area, element("button", {
      type: "button",
      onclick: () => {
        row.remove();
        numberParts(find("step-list"), "Step");
        find("add-step").focus();
      },
    }, "\u00d7"));
    return row;
  }

  const steps = () => [...find("step-list").querySelectorAll("textarea")].map((x) => x.value);

  function setSteps(texts) {
    find("step-list").replaceChildren(...texts.map(stepRow));
    numberParts(find("step-list"), "Step");
    find("step-list").querySelectorAll("textarea").forEach(grow);
  }

  function showMessages() {
    const rows = messages.map((message, i) => {
      const role = element("select", {
        "aria-label": `Role of message ${i + 1}`,
        onchange: () => { message.role = role.value; },
      }, ...ROLES.map((x) => element("option", {}, x)));
      if (!ROLES.includes(message.role)) role.append(element("option", {}, String(message.role)));
      role.value = message.role;
      const plain = typeof message.content === "string" || message.content === undefined || message.content === null;
      const others = Object.keys(message).filter((x) => x !== "role" && x !== "content");
      const area = element("textarea", {
        rows: "2", spellcheck: "false", readonly: !plain,
        oninput: () => { message.content = area.value; grow(area); },
      });
      area.value = plain ? message.content || "" : JSON.stringify(message.content);
      const remove = element("button", {
        type: "button",
        onclick: () => { messages.splice(i, 1); showMessages(); find("add-message").focus(); },
      }, "\u00d7");
      return element("li", {},
        element("div", { class: "role" }, role,
          others.length ? element("small", { class: "text" }, prm.visible(`with ${others.join(", ")}`)) : null),
        area, remove);
    });
    find("message-list").replaceChildren(...rows);
    numberParts(find("message-list"), "Message");
    find("message-list").querySelectorAll("textarea").forEach(grow);
  }

  /** Returns whether a value is a list of messages, or says what it is not. */
  function checkMessages(value) {
    if (!Array.isArray(value) || !value.every((x) => x && typeof x === "object" && typeof x.role === "string")) {
      throw new Refused('Expected a list of messages, as in [{"role": "user", "content": "2 + 2?"}].', 0);
    }
    return value;
  }

  function useJson() {
    try {
      let value;
      try {
        value = JSON.parse(find("json").value);
      } catch (error) {
        throw new Refused(`The messages aren't JSON: ${error.message}`, 0);
      }
      messages = checkMessages(value);
    } catch (error) {
      fail(error);
      return false;
    }
    find("error").hidden = true;
    find("json-part").hidden = true;
    showMessages();
    return true;
  }

  /** Returns whether nothing is written yet. */
  const isBlank = () => !find("problem").value && !find("text").value
    && !steps().some(Boolean) && !messages.some((x) => x.content);

  /** Returns what of the input a link holds. */
  function state() {
    const models = chosenModels().map((x) => x.id);
    const chosen = kind();
    if (chosen === "messages") return { models, messages };
    const problem = find("problem").value;
    if (chosen === "steps") return { models, problem, steps: steps() };
    return { models, problem, text: find("text").value, segmenter: segmenter() };
  }

  /** Returns the solution at the left, to compare it with that of another time. */
  const solution = () => JSON.stringify({ ...state(), models: null, problem: null });

  function setState(given) {
    const names = given.models;
    const areKnown = Array.isArray(names)
      && (!names.length || names.some((name) => served.some((model) => model.id === name)));
    if (areKnown) {
      document.querySelectorAll('input[name="model"]').forEach((x) => { x.checked = names.includes(x.value); });
    }
    find("problem").value = String(given.problem ?? "");
    if (Array.isArray(given.messages)) {
      messages = checkMessages(given.messages);
      showMessages();
      show("messages");
    } else if (Array.isArray(given.steps)) {
      setSteps(given.steps.map(String));
      show("steps");
    } else {
      find("text").value = String(given.text ?? "");
      const [name, num] = String(given.segmenter ?? "").split(":");
      if ([...find("segmenter").options].some((x) => x.value === name)) find("segmenter").value = name;
      if (num) find("num-tokens").value = num;
      tellSegmenter();
      show("text");
    }
  }

  // --- Links: the input as the part of an address that stays in the browser ----

  function toLink(value) {
    const bytes = new TextEncoder().encode(JSON.stringify(value));
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  }

  function fromLink(text) {
    const bytes = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(
      Uint8Array.from(bytes, (c) => c.charCodeAt(0))));
  }

  /** Takes the input of the address; returns whether there was one. */
  function readLink() {
    const text = location.hash.slice(1);
    if (!text) return false;
    try {
      const given = fromLink(text);
      if (Array.isArray(given.messages) && !readTurns()) {
        fail(new Refused("This link holds a conversation, and no model of this server reads turns.", 0));
        return false;
      }
      setState(given);
      address = location.hash;
      return true;
    } catch {
      fail(new Refused("This link's input can't be read; ask for the link again, or write the input.", 0));
      return false;
    }
  }

  /** Puts the input into the address unless it is too long; returns its length. */
  function writeLink() {
    const text = toLink(state());
    address = text.length > LONGEST_LINK ? "" : `#${text}`;
    history.replaceState(null, "", address || location.pathname);
    return text.length;
  }

  // An address that holds the input follows it, so that a reload brings it back.
  let following = 0;
  function follow() {
    clearTimeout(following);
    following = setTimeout(() => {
      if (address && location.hash === address) writeLink();
    }, 200);
  }

  // --- Asking and showing ----------------------------------------------------

  /** Returns the item that the server is asked to score. */
  async function itemOf() {
    const chosen = kind();
    if (chosen === "messages") {
      if (!find("json-part").hidden && !useJson()) return null;
      return { messages, steps_are: "turns" };
    }
    const problem = find("problem").value;
    if (!problem.trim()) throw new Refused("Write a problem first.", 0);
    if (chosen === "steps") return { problem, steps: steps() };
    const text = find("text").value;
    if (!text.trim()) throw new Refused("Write a solution first.", 0);
    if (!segmenter()) return { problem, response: text };
    return { problem, steps: await cut(text) };
  }

  /** Returns a text's characters; a half of a pair counts for itself. */
  const characters = (text) => Array.from(text);

  /** Returns the steps of a text, cut by the chosen segmenter. */
  async function cut(text) {
    const [model] = chosenModels();
    if (!model) throw new Refused("Choose a model.", 0);
    const body = { model: model.id, text };
    if (segmenter()) body.segmenter = segmenter();
    const reply = await ask("/v1/prm/cut", body);
    const whole = characters(text);
    return reply.segments.map(([start, end]) => whole.slice(start, end).join(""));
  }

  /** Returns the texts of an item's steps, by a reply's entry. */
  function stepsOf(item, entry) {
    if (item.steps) return item.steps;
    if (item.response !== undefined) {
      const whole = characters(item.response);
      return entry.segments.map(([start, end]) => whole.slice(start, end).join(""));
    }
    return entry.turns.map((turn) => {
      const message = item.messages[turn.message];
      const content = message.content ?? "";
      const text = typeof content === "string" ? content : JSON.stringify(content);
      const calls = message.tool_calls ? JSON.stringify(message.tool_calls) : "";
      return [text, calls].filter(Boolean).join("\n");
    });
  }

  /**
   * Scores an item by the chosen models; each is shown as its reply arrives.
   * `before` holds the scores of before an edit, by model.
   */
  async function score(item, before = null) {
    const number = ++asked;
    const models = chosenModels();
    find("error").hidden = true;
    if (!models.length) throw new Refused("Choose a model.", 0);
    clearShown();
    shown = { item, steps: null, models: models.map((x) => ({ name: x.id, scores: null })), solution: solution() };
    find("verdict").textContent = "Scoring \u2026";
    if (!before) intoView(find("verdict"));
    await Promise.all(models.map(async (model, i) => {
      let entry;
      try {
        [entry] = (await ask("/v1/prm/score", { model: model.id, items: [item] })).data;
      } catch (error) {
        if (number === asked) {
          error.message = models.length > 1 ? `${model.id}: ${error.message}` : error.message;
          fail(error);
        }
        return;
      }
      if (number !== asked) return;
      const own = stepsOf(item, entry);
      const isFirst = shown.steps === null;
      if (isFirst) shown.steps = own;
      const row = shown.models[i];
      if (own.length !== shown.steps.length || own.some((x, j) => x !== shown.steps[j])) {
        fail(new Refused(`${model.id} cuts the text into other steps; choose one way to cut it, or score it alone.`, 0));
        return;
      }
      row.scores = entry.step_scores;
      row.judged = entry.judged || null;
      row.total = entry.score;
      if (before) row.before = before[model.id] || null;
      render();
      if (isFirst && !before) intoView(find("verdict"));
    }));
    if (number !== asked) return;
    if (shown.steps === null) {
      find("verdict").textContent = "Nothing is scored.";
      return;
    }
    render();
    explain();
  }

  function render() {
    const known = shown.models.filter((x) => x.scores);
    const whole = known.map((x) => `${x.name} ${prm.shown(x.total)}`).join(", ");
    const verdict = prm.verdict(known, 0.5);
    find("verdict").textContent = prm.visible(
      `${known.length > 1 ? verdict : capital(verdict)}. Whole solution: ${whole}.`);
    const order = find("order");
    order.hidden = known.length < 2;
    order.textContent = prm.visible(`Beside each step: ${known.map((x) => x.name).join(", ")}, in this order.`);
    const problem = find("shown-problem");
    problem.hidden = shown.item.problem === undefined;
    if (!problem.hidden) prm.text(problem, shown.item.problem);
    const list = prm.stepList({
      steps: shown.steps,
      models: known,
      extra: shown.item.messages ? null : editor,
    });
    // What is being changed stays, also when another model answers.
    if (find("result").querySelector("form")) return;
    find("result").replaceChildren(list);
    find("hint").hidden = false;
    if (!shown.item.messages) {
      list.querySelectorAll(":scope > .step").forEach((row) => {
        row.addEventListener("keydown", (event) => {
          if (event.key === "Enter" && event.target === row) {
            event.preventDefault();
            row.querySelector(".edit").click();
          }
        });
      });
    }
  }

  const capital = (text) => text && text[0].toUpperCase() + text.slice(1);

  /** Returns the button that changes step i, in its place. */
  function editor(i) {
    return element("button", {
      type: "button",
      class: "edit",
      "aria-label": `Edit step ${i + 1}`,
      onclick: (event) => {
        const row = event.target.closest(".step");
        const area = element("textarea", { "aria-label": `New text of step ${i + 1}`, spellcheck: "false" });
        area.value = shown.steps[i];
        const back = () => {
          find("result").replaceChildren();
          render();
          focusStep(i);
        };
        const form = element("form", {
          onsubmit: (submitted) => {
            submitted.preventDefault();
            changeStep(i, area.value);
          },
          onkeydown: (pressed) => {
            pressed.stopPropagation();
            if (pressed.key === "Escape") back();
            if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) {
              pressed.preventDefault();
              form.requestSubmit();
            }
          },
        }, area, element("div", { class: "row" },
          element("button", { class: "main" }, "Score again"),
          element("button", { type: "button", onclick: back }, "Leave it")));
        row.replaceChildren(row.querySelector(".number"), form);
        grow(area);
        area.focus();
      },
    }, "Edit");
  }

  function focusStep(i) {
    const row = find("result").querySelectorAll(".step")[i];
    if (row) row.focus();
  }

  /**
   * Scores the solution with another step i, as Score would: with the problem and
   * the models at the left. Scores of before are beside it if the problem is the
   * same. A solution that was changed at the left isn't overwritten.
   */
  async function changeStep(i, text) {
    const problem = find("problem").value;
    const isSame = solution() === shown.solution
      || (kind() === "steps" && JSON.stringify(steps()) === JSON.stringify(shown.steps));
    if (!isSame || !problem.trim()) {
      fail(new Refused(isSame ? "Write a problem first."
        : "The solution at the left has changed since it was scored: press Score, then change its steps.", 0));
      return;
    }
    const before = problem !== shown.item.problem ? {}
      : Object.fromEntries(shown.models.map((x) => [x.name, x.scores]));
    const changed = shown.steps.map((step, j) => (j === i ? text : step));
    setSteps(changed);
    show("steps");
    await attempt(() => score({ problem, steps: changed }, before));
    if (!shown.models.some((x) => x.scores)) return;
    focusStep(i);
  }

  // --- The same request elsewhere --------------------------------------------

  /** Returns a text as Python writes it. */
  function python(value) {
    if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
    if (value === null) return "None";
    if (typeof value === "boolean") return value ? "True" : "False";
    if (value && typeof value === "object") {
      return `{${Object.entries(value).map(([k, v]) => `${python(k)}: ${python(v)}`).join(", ")}}`;
    }
    return JSON.stringify(value).replace(/\u007f/g, "\\u007f").replace(/[\u2028\u2029]/g,
      (c) => `\\u${c.charCodeAt(0).toString(16)}`);
  }

  function explain() {
    const { item } = shown;
    const names = shown.models.map((x) => x.name);
    const auth = key ? ' \\\n  -H "Authorization: Bearer $KEY"' : "";
    find("curl").textContent = names.map((model) => `curl ${location.origin}/v1/prm/score \\\n`
      + `  -H 'Content-Type: application/json'${auth} \\\n  -d @- <<'JSON'\n`
      + `${JSON.stringify({ model, items: [item] })}\nJSON`).join("\n\n");
    const options = key ? ', key_variable="KEY"' : "";
    const call = item.messages ? `client.score_conversations([${python(item.messages)}])`
      : item.steps ? `client.score(${python(item.problem)}, ${python(item.steps)})`
        : `client.score_text(${python(item.problem)}, ${python(item.response)})`;
    const server = JSON.stringify(`${location.origin}/v1`);
    const client = (model) => `client = prm_jax.Client(${server}, model=${model}${options})\n`;
    find("python").textContent = "import prm_jax\n\n" + (names.length === 1
      ? `${client(python(names[0]))}print(${call})`
      : `for model in ${python(names)}:\n  ${client("model")}  print(model, ${call})`);
    for (const id of ["curl-part", "python-part", "share"]) find(id).hidden = false;
    find("copied").textContent = "";
  }

  async function copyLink() {
    const length = writeLink();
    if (!address) {
      find("copied").textContent = "This input is too long for a link, which would have"
        + ` ${length.toLocaleString("en")} characters; browsers take ${LONGEST_LINK.toLocaleString("en")}.`;
      return;
    }
    try {
      await navigator.clipboard.writeText(location.href);
      find("copied").textContent = "Copied. The address has it, too.";
    } catch {
      find("copied").textContent = "The address above holds it now.";
    }
  }

  // --- What a person does ----------------------------------------------------

  /** Does something that may be refused. */
  async function attempt(action) {
    try {
      await action();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      clearShown();
      find("verdict").textContent = "Nothing is scored.";
      fail(error);
    }
  }

  const scoreInput = () => attempt(async () => {
    find("error").hidden = true;
    if (!await isReady()) return;
    checkTokens();
    const item = await itemOf();
    if (item) await score(item);
  });

  find("input").addEventListener("submit", (event) => {
    event.preventDefault();
    scoreInput();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      scoreInput();
    }
  });
  document.querySelectorAll('input[name="kind"]').forEach((x) => {
    x.addEventListener("change", () => show(x.value));
  });
  find("models").addEventListener("change", tellSegmenter);
  find("segmenter").addEventListener("change", tellSegmenter);
  find("num-tokens").addEventListener("input", tellSegmenter);
  find("cut").addEventListener("click", () => attempt(async () => {
    find("error").hidden = true;
    if (!await isReady()) return;
    if (!find("text").value.trim()) throw new Refused("Write a solution first.", 0);
    checkTokens();
    setSteps(await cut(find("text").value));
    show("steps");
    find("step-list").querySelector("textarea")?.focus();
  }));
  find("add-step").addEventListener("click", () => {
    find("step-list").append(stepRow(""));
    numberParts(find("step-list"), "Step");
    find("step-list").lastElementChild.querySelector("textarea").focus();
  });
  find("add-message").addEventListener("click", () => {
    const last = messages[messages.length - 1];
    messages.push({ role: last && last.role === "user" ? "assistant" : "user", content: "" });
    showMessages();
    find("message-list").lastElementChild.querySelector("textarea").focus();
  });
  find("edit-json").addEventListener("click", () => {
    find("json-part").hidden = false;
    find("json").value = JSON.stringify(messages, null, 2);
    find("json").focus();
  });
  find("use-json").addEventListener("click", useJson);
  find("example").addEventListener("click", () => {
    setState(EXAMPLE);
    scoreInput();
  });
  find("clear").addEventListener("click", () => {
    asked++;
    shown = null;
    messages = [{ role: "user", content: "" }, { role: "assistant", content: "" }];
    find("message-list").replaceChildren();
    find("json-part").hidden = true;
    setSteps([""]);
    for (const id of ["problem", "text"]) find(id).value = "";
    find("error").hidden = true;
    clearShown();
    find("verdict").textContent = "Nothing is scored yet.";
    history.replaceState(null, "", location.pathname);
    show(kind());
    find("problem").focus();
  });
  find("link").addEventListener("click", copyLink);
  find("key-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = find("key").value.trim();
    if (/[^\x20-\x7e]/.test(given)) {
      askKey("A key has letters, digits and signs of ASCII alone; check this one.");
      return;
    }
    key = given;
    find("key-form").hidden = true;
    if (await loadModels()) find("problem").focus();
  });
  window.addEventListener("hashchange", () => {
    asked++;
    clearShown();
    find("verdict").textContent = "Nothing is scored yet.";
    readLink();
  });
  for (const kind of ["input", "change", "click", "submit"]) document.addEventListener(kind, follow);
  loadModels();
})();
