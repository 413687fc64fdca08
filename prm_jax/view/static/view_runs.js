// The curves of runs, and the numbers of evaluations.
"use strict";
view.runs = (() => {
  const { element: el } = prm;
  const {
    address, facts, fold, index, link, number, page,
  } = view;

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
    const css = (kind) => (kind === "train" ? "k0" : "k1");
    const drawnAs = (kind) => (lines.length > 1 ? ` (${kind === "train" ? "line" : "dashed"})` : "");
    const said = lines.map(({ kind, points: own }) =>
      `${kind}${drawnAs(kind)}: ${brief(own[0][1])} at step ${brief(own[0][0])}, ${brief(own.at(-1)[1])} at step ${brief(own.at(-1)[0])}`).join("; ");
    const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}. ${said}. Least ${brief(fromY)}, most ${brief(toY)}.` },
      svg("path", { class: "axis", d: `M${left} 8V${bottom}H${right}` }),
      svg("text", { x: left - 5, y: toY > fromY ? 15 : y(toY) + 4, "text-anchor": "end" }, brief(toY)),
      svg("text", { x: left - 5, y: bottom, "text-anchor": "end" }, toY > fromY ? brief(fromY) : ""),
      svg("text", { x: left, y: height - 4 }, `step ${brief(fromX)}`),
      svg("text", { x: right, y: height - 4, "text-anchor": "end" }, toX > fromX ? brief(toX) : ""));
    lines.forEach(({ kind, points: own }) => {
      if (own.length > 1) drawn.append(svg("polyline", { class: css(kind), points: own.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") }));
      else drawn.append(svg("circle", { class: css(kind), cx: x(own[0][0]), cy: y(own[0][1]), r: 3 }));
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

  return { run: showRun, evaluation: showEvaluation };
})();
