// The task alternatives: the steps that were taken, next steps that a model is still
// writing, and the box for a step of one's own.
"use strict";
const alternatives = (page) => {
  const POLL_MS = 500;
  const find = (id) => document.getElementById(id);
  let timer = 0;

  // --- What is there --------------------------------------------------------------

  /** Shows the steps that were taken, and how the list below them stands. */
  function build() {
    const { state } = page.item();
    find("path-part").hidden = !state.path.length;
    find("path").replaceChildren(...state.path.map((text, i) => {
      const made = page.stepRow(String(i + 1), text);
      made.tags.append(prm.element("span", { class: "rating neutral" },
        state.written.includes(i) ? "your own" : "taken"));
      return made.node;
    }));
    tell(page.item());
  }

  /** Says how the list stands; `before` is the item as it was shown there last. */
  function tell(before) {
    const { alternatives: texts, draws, is_end: isEnd, state } = page.item();
    const isDrawing = Boolean(draws && draws.is_drawing);
    const isOver = isEnd && !texts.length;
    const isOpen = texts.length || isDrawing;
    find("list-title").textContent = `Step ${state.path.length + 1}: ${isOpen ? "how does it go on?"
      : `nothing goes on from here${isEnd ? ", where a solution ends" : ""}`}`;
    const num = texts.length - before.alternatives.length;
    let words = num > 0 ? `New: ${num === 1 ? "a next step" : `${num} next steps`}.` : "";
    if (draws && draws.is_empty && !isOver) words = "The model wrote nothing new here: d tries again, w is for a step of your own.";
    if (draws && draws.has_failed) words = "No next step could be written: d tries again, w is for one of your own.";
    if (isDrawing) words = "Next steps are being written\u2026";
    find("drawn").textContent = state.reason === null ? words : "";
  }

  /** Asks for the item again until nothing is being written. */
  function watch() {
    clearTimeout(timer);
    const asked = page.item();
    if (!asked || !asked.draws || !asked.draws.is_drawing) return;
    timer = setTimeout(async () => {
      let reply = null;
      try {
        reply = await calls.ask(calls.pathOf(asked.id));
      } catch (error) {
        if (!(error instanceof calls.Refused)) throw error;
      }
      // What was judged meanwhile is newer.
      if (reply && page.item() === asked && !page.isBusy()) page.show(reply, { kind: "draw" });
      else watch();
    }, POLL_MS);
  }

  // --- Keys -------------------------------------------------------------------------

  function take() {
    const { alternatives: texts, draws } = page.item();
    if (!texts.length && draws && draws.is_drawing) return page.say("Next steps are still being written: wait, or write one (w).");
    if (!texts.length) return page.say("There is no way to go on: write one (w), or end here (a or e).");
    if (!(page.rating() >= 0)) return page.say("Only what is rated neutral (2) or right (3) can be taken.");
    return page.judge({ kind: "take", alternative: page.cursor() }, `${page.rowName(page.cursor())}: taken`);
  }

  function draw() {
    const { id, draws } = page.item();
    if (draws.is_drawing) return page.say("Next steps are being written already.");
    return page.run(async () => {
      const body = { item: id, number: draws.number };
      page.show(await calls.askUntilAnswered("/v1/label/draws", body, "Not asked for yet"), { kind: "draw" });
      page.say("More next steps are asked for.");
    });
  }

  function openWrite() {
    find("write").hidden = false;
    find("written").focus();
    find("write").scrollIntoView({ block: "center" });
  }

  function closeWrite() {
    find("write").hidden = true;
    find("written").value = "";
    document.activeElement.blur();
    page.focusRow();
  }

  find("write").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = find("written").value;
    if (page.isBusy()) return;
    if (!text.trim()) page.say("Write a step first, or close the box.");
    else page.judge({ kind: "write", text }, "Your own step");
  });
  find("written").addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeWrite();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      find("write").requestSubmit();
    }
  });
  find("close-write").addEventListener("click", closeWrite);

  return { build, closeWrite, draw, openWrite, take, tell, watch };
};
