// What the labelling page sends, as the global `calls`: requests that outlast a
// server's absence, judgements that stay in this browser until they are kept, and
// the time that they took.
"use strict";
const calls = (() => {
  const IDLE_MS = 30_000;
  const LONGEST_WAIT_S = 30;
  const LONGEST_ANSWER_MS = 20_000;

  let key = "";
  let tellLate = () => {};

  /** Begins: whose key it is, and what is called while no answer comes, with "" after. */
  function begin(givenKey, told) {
    key = givenKey;
    tellLate = told;
  }

  // --- The server ------------------------------------------------------------

  class Refused extends Error {
    constructor(message, status, after = null) {
      super(message);
      this.status = status;
      this.after = after;
    }

    /** Whether the same request may do later. */
    get isLate() {
      return this.status === 0 || this.status === 429 || this.status >= 500;
    }
  }

  /** Returns where an item is. */
  const pathOf = (id) => `/v1/label/items/${encodeURIComponent(id)}`;

  /** Returns a reply's JSON. */
  async function ask(path, body) {
    // No browser sends another character in a header.
    if (!/^[!-~]*$/.test(key)) throw new Refused("This key is nobody's.", 401);
    const headers = { Authorization: `Bearer ${key}` };
    const request = {
      headers, cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(LONGEST_ANSWER_MS),
    };
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      request.method = "POST";
      request.body = JSON.stringify(body);
    }
    let reply;
    let record;
    try {
      reply = await fetch(path, request);
      record = await reply.json();
    } catch {
      const said = reply ? `its reply, status ${reply.status}, can't be read` : "it doesn't answer";
      throw new Refused(`The server: ${said}.`, reply && !reply.ok ? reply.status : 0);
    }
    if (reply.ok) return record;
    const error = record && record.error;
    const message = (error && error.message) || error || `status ${reply.status}`;
    throw new Refused(String(message), reply.status, reply.headers.get("Retry-After"));
  }

  /** Returns a reply's JSON, however long the server is away. */
  async function askUntilAnswered(path, body, missing) {
    try {
      for (let wait = 1; ; wait = Math.min(2 * wait, LONGEST_WAIT_S)) {
        try {
          return await ask(path, body);
        } catch (error) {
          if (!error.isLate) throw error;
          const seconds = Number(error.after) || wait;
          tellLate(`${missing}, trying again in ${seconds} s. ${error.message}`);
          await pause(1000 * seconds);
        }
      }
    } finally {
      tellLate("");
    }
  }

  /** Waits, but not after the network has come back. */
  function pause(ms) {
    return new Promise((resolve) => {
      const go = () => {
        clearTimeout(timer);
        removeEventListener("online", go);
        resolve();
      };
      const timer = setTimeout(go, ms);
      addEventListener("online", go);
    });
  }

  // --- Judgements that aren't kept yet -----------------------------------------

  /** Returns where those of this key's person are; it doesn't tell the key. */
  function place() {
    let hash = 0x811c9dc5;
    for (const c of key) hash = Math.imul(hash ^ c.codePointAt(0), 0x01000193) >>> 0;
    return `prm-label/${hash.toString(16)}/`;
  }

  /** Returns a random id; the browser's own needs HTTPS or this machine. */
  function randomId() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (x) => x.toString(16).padStart(2, "0")).join("");
  }

  /** Returns a judgement of an item, with words for it, which is in this browser now. */
  function judgement(item, event, words) {
    const body = { item: item.id, event, id: randomId(), after: item.last, seconds: takeSeconds() };
    const made = { name: `${place()}${Date.now()}-${body.id}`, words, body };
    try {
      localStorage.setItem(made.name, JSON.stringify(made));
    } catch {
      // There is no space: it is in this page at least.
    }
    return made;
  }

  /** Returns the judgements that an earlier page left, in their order. */
  function remembered() {
    const names = Object.keys(localStorage).filter((x) => x.startsWith(place()));
    // Another tab may have sent one meanwhile.
    return names.sort().map((x) => JSON.parse(localStorage.getItem(x))).filter((x) => x !== null);
  }

  function forget() {
    remembered().forEach((x) => localStorage.removeItem(x.name));
  }

  // What a server says that has looked at a judgement, and will never keep it.
  const NEVER = [400, 409];

  /**
   * Sends a judgement until it is kept or refused; returns the item after it. One that
   * the server didn't look at stays in this browser and is sent again by the next page.
   */
  async function keep(given) {
    try {
      const kept = await askUntilAnswered("/v1/label/events", given.body, `${given.words}: not kept yet`);
      localStorage.removeItem(given.name);
      return kept;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const isOver = NEVER.includes(error.status);
      if (isOver) localStorage.removeItem(given.name);
      const stays = isOver ? "" : "; it stays here and is sent again when the page is loaded";
      throw new Refused(`${given.words}: not kept${stays}. ${error.message}`, error.status);
    }
  }

  // --- Time without idle time ----------------------------------------------------

  let activeMs = 0;
  let counted = performance.now(); // Until when time is counted.
  let lastInput = counted;
  let wasHidden = document.hidden;

  function count() {
    const now = performance.now();
    if (!wasHidden) activeMs += Math.max(0, Math.min(now, lastInput + IDLE_MS) - counted);
    counted = now;
    wasHidden = document.hidden;
  }

  function act() {
    count();
    lastInput = counted;
  }

  /** Returns the seconds since the last judgement. */
  function takeSeconds() {
    count();
    const seconds = Math.round(activeMs) / 1000;
    activeMs = 0;
    return seconds;
  }

  for (const kind of ["keydown", "pointerdown", "pointermove", "wheel", "scroll", "touchmove"]) {
    addEventListener(kind, act, { capture: true, passive: true });
  }
  document.addEventListener("visibilitychange", count);

  return { Refused, ask, askUntilAnswered, begin, forget, judgement, keep, pathOf, remembered, takeSeconds };
})();
