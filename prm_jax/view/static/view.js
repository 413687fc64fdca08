// The pages of `prm-jax view`. What is shown is in the address after "#", so a
// link leads to it: #samples?show=missed, #sample/ID, #search/ID?node=3.
// data/index.js has what tables show; the rest is loaded when it is looked at.
"use strict";
(() => {
  const { element: el } = prm;
  const { count, index, link, number, page, place } = view;

  const KINDS = {
    evaluations: ["Evaluations", count("evaluations"), view.pages.evaluation],
    runs: ["Runs", count("runs"), view.pages.run],
    samples: ["Samples", count("samples"), view.samples.all],
    searches: ["Searches", count("searches"), view.searches.all],
  };
  const ONE = { sample: ["samples", view.samples.one], search: ["searches", view.searches.one] };
  let isFirst = true;
  const left = {}; // Where one was on each page that one left, by its address.
  let isUp = false;

  async function show() {
    const at = place();
    if (!at.kind) at.kind = Object.keys(KINDS).find((x) => KINDS[x][1]) || "samples";
    const all = (ONE[at.kind] || [at.kind])[0];
    document.getElementById("kinds").replaceChildren(
      ...Object.entries(KINDS).filter(([, x]) => x[1]).map(([kind, [label, num]]) =>
        link(`${label} ${number(num)}`, `#${kind}`, kind === all ? { "aria-current": "page" } : {})));
    if (["runs", "evaluations"].includes(at.kind) && at.key === "" && count(at.kind)) {
      at.key = index[at.kind].key[0];
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
    const { y, row } = history.state || (isUp && left[location.hash]) || {};
    isUp = false;
    if (y !== undefined) {
      (page.querySelector(`a[data-row="${row}"]`) || page).focus({ preventScroll: true });
      window.scrollTo(0, y);
    } else if (!isFirst || focus) {
      (focus || page).focus({ preventScroll: true });
      if (focus) focus.scrollIntoView({ block: "center" });
      else window.scrollTo(0, 0);
    }
    isFirst = false;
  }

  // Where one was on a page that one leaves, so that Back and Escape lead there.
  document.addEventListener("click", (event) => {
    const to = event.target.closest("a[href^='#']");
    if (!to) return;
    left[location.hash] = { y: window.scrollY, row: to.dataset.row };
    history.replaceState(left[location.hash], "");
    isUp = to.id === "up";
  }, true);

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
