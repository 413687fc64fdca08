// Pictures of lines: a panel is what Panel in evaluation/figures.py describes.
"use strict";
view.chart = (() => {
  const { element: el } = prm;
  const { named, number } = view;

  const SVG = "http://www.w3.org/2000/svg";
  // Each line has one of each, in turn: no two differ by colour alone.
  const COLOURS = 10;
  const DASHES = ["none", "8 3", "10 3 2 3", "5 3", "2 3", "12 3 2 3 2 3"];
  const MARKERS = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M0-5L4.6 3.4H-4.6z", "M0-5L5 0L0 5L-5 0z",
    "M-3.5-3.5h7v7h-7z", "M-4-4L4 4M-4 4L4-4", "M-5 0H5M0-5V5",
    "M-5-1.5h10v3h-10z",
  ];
  const MOST_MARKERS = 12;

  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  const isKnown = (x) => x !== null && x !== undefined;
  /** Returns a number as it is said: whole ones as they are, others with 4 digits. */
  const brief = (x) => Number.isInteger(x) && Math.abs(x) < 1e15 ? number(x) : String(rounded(x, 4));

  /** Returns a number with so many digits, rounded as tables are. */
  function rounded(x, digits) {
    const after = digits - 1 - Math.floor(Math.log10(Math.abs(x) || 1));
    return after < 0 || after > 50 ? +x.toPrecision(digits) : +prm.fixed(x, after);
  }

  /** Returns a number in 6 letters or so, for an axis. */
  function short(x) {
    const [unit, letter] = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([least]) => Math.abs(x) >= least) || [1, ""];
    const most = letter === "k" ? 1e3 : unit;
    return `${Math.abs(x) >= 1e13 ? x.toExponential(0) : +(x / most).toPrecision(4)}${Math.abs(x) >= 1e13 ? "" : letter}`;
  }
  const name = (x) => `k${x % COLOURS}`;

  /** Returns round numbers from at most `low` to at least `high`. */
  function ticks(low, high, most = 5, least = 0) {
    const span = high - low || Math.abs(high) || 1;
    const power = 10 ** Math.floor(Math.log10(span / most));
    const step = [1, 2, 5, 10, 20].map((x) => x * power).find((x) => x * most >= span && x >= least);
    const first = Math.floor(low / step);
    const last = Math.max(Math.ceil(high / step), first + 1);
    return Array.from({ length: last - first + 1 }, (_, i) => +((first + i) * step).toPrecision(12));
  }

  /** Returns the places of values on an axis whose ticks reach from start to end. */
  function axis(named_, start, end, map = (x) => x) {
    const [low, high] = [map(named_[0]), map(named_.at(-1))];
    return (x) => +(high > low ? start + (map(x) - low) / (high - low) * (end - start) : (start + end) / 2).toFixed(1);
  }

  /** Returns [least, greatest] of the values that are known. */
  function range(values) {
    return values.filter(isKnown).reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
  }

  /** Returns the numbers at which y is named: all values, and what it holds. */
  function heights(panel) {
    const values = panel.lines.flatMap((x) => [...x.y, ...x.low, ...x.high]);
    let [low, high] = range([...values, ...panel.holds]);
    // A change of a few percent would fill the picture and look like a great one.
    if (high - low < 0.05 * Math.max(Math.abs(low), Math.abs(high))) {
      [low, high] = [Math.min(0, low), Math.max(0, high)];
    }
    return ticks(low, high);
  }

  function widths(panel) {
    const [low, high] = range([...panel.lines.flatMap((x) => x.x), ...(panel.has_diagonal ? [0, 1] : [])]);
    if (panel.x_names.length) return panel.x_ticks.length > 1 ? panel.x_ticks : [-1, 0, 1];
    if (panel.x_ticks.length) return panel.x_ticks;
    if (panel.x_is_log) {
      const from = Math.floor(Math.log2(low));
      return Array.from({ length: Math.max(2, Math.ceil(Math.log2(high)) - from + 1) }, (_, i) => 2 ** (from + i));
    }
    const areWhole = panel.lines.every((line) => line.x.every(Number.isInteger));
    return ticks(low, high, 4, areWhole ? 1 : 0);
  }

  /** Returns the pieces of a line without a gap, as the numbers of its points. */
  function pieces(line) {
    const found = [[]];
    line.x.forEach((_, i) => {
      if (isKnown(line.y[i])) found.at(-1).push(i);
      else found.push([]);
    });
    return found.filter((x) => x.length);
  }

  const path = (points) => `M${points.map((x) => x.join(" ")).join("L")}`;

  function draw(line, look, at, said) {
    const css = name(look);
    const made = svg("g", { class: css });
    const known = line.x.map((_, i) => i).filter((i) => isKnown(line.low[i]) && isKnown(line.high[i]));
    const joined = line.is_joined ? pieces(line).filter((x) => x.length > 1) : [];
    const alone = new Set(pieces(line).filter((x) => x.length === 1).flat());
    if (joined.length && known.length === line.y.filter(isKnown).length) {
      joined.forEach((piece) => {
        const ends = [...piece.map((i) => at(line.x[i], line.high[i])), ...[...piece].reverse().map((i) => at(line.x[i], line.low[i]))];
        made.append(svg("path", { class: "band", d: `${path(ends)}z` }));
      });
    } else {
      known.forEach((i) => made.append(svg("path", { class: "line", d: path([at(line.x[i], line.low[i]), at(line.x[i], line.high[i])]) })));
    }
    joined.forEach((piece) => made.append(svg("path", {
      class: "line", d: path(piece.map((i) => at(line.x[i], line.y[i]))), "stroke-dasharray": DASHES[look % DASHES.length] })));
    const every = Math.ceil(line.x.length / MOST_MARKERS);
    line.x.forEach((x, i) => {
      if ((i % every && !alone.has(i)) || !isKnown(line.y[i])) return;
      const marker = svg("path", { class: "marker", d: MARKERS[look % MARKERS.length], transform: `translate(${at(x, line.y[i]).join(" ")})` });
      marker.append(svg("title", {}, `${prm.visible(line.label)}, ${said(line, i)}`));
      made.append(marker);
    });
    return made;
  }

  /** Returns the swatch of a line in the list of names. */
  function swatch(look) {
    return svg("svg", { class: `swatch ${name(look)}`, viewBox: "0 0 34 12", "aria-hidden": "true" },
      svg("path", { class: "line", d: "M0 6H34", "stroke-dasharray": DASHES[look % DASHES.length] }),
      svg("path", { class: "marker", d: MARKERS[look % MARKERS.length], transform: "translate(17 6)" }));
  }

  /** Returns the figure of a panel; one that stands alone is wide where there is room. */
  function chart(panel, isAlone) {
    if (!panel.lines.some((x) => x.y.some(isKnown))) {
      return el("figure", {}, el("figcaption", {}, ...named(panel.title || panel.y_label)),
        el("p", { class: "note" }, "No value is known."));
    }
    const wide = isAlone && window.matchMedia("(min-width: 48rem)").matches;
    // Both a title and what y is called: the latter stands above the picture.
    const high = panel.title && panel.y_label ? 14 : 0;
    // Names in place of numbers may be long: they are written upwards.
    const low = panel.x_names.length > 4 ? 40 : 0;
    const [width, right] = wide ? [760, 745] : [400, 386];
    const [left, top, bottom] = [52, 12 + high, (wide ? 316 : 206) + high];
    const height = bottom + 44 + low;
    const shown = (y) => brief(panel.is_share ? rounded(100 * y, 3) : y) + (panel.is_share ? " %" : "");
    const nameOf = (x) => {
      const i = panel.x_ticks.indexOf(x);
      return panel.x_names.length ? panel.x_names[i] ?? "" : brief(x);
    };
    const said = (line, i) => {
      const ends = isKnown(line.low[i]) && isKnown(line.high[i]) && line.low[i] < line.high[i];
      return `${prm.visible(nameOf(line.x[i]))}: ${shown(line.y[i])}${ends ? ` [${shown(line.low[i])}, ${shown(line.high[i])}]` : ""}`;
    };
    const [xs, ys] = [widths(panel), heights(panel)];
    const atX = axis(xs, panel.x_names.length ? left + 24 : left, panel.x_names.length ? right - 24 : right, panel.x_is_log ? Math.log2 : undefined);
    const atY = axis(ys, bottom, top);
    const at = (x, y) => [atX(x), atY(y)];
    const ends = (line) => {
      if (panel.x_names.length) return line.x.flatMap((_, i) => isKnown(line.y[i]) ? [said(line, i)] : []).join("; ");
      const known = line.y.map((y, i) => [y, i]).filter(([y]) => isKnown(y)).map(([, i]) => i);
      return known.length > 1 ? `${said(line, known[0])}; ${said(line, known.at(-1))}` : known.length ? said(line, known[0]) : "";
    };
    const label = [panel.title, panel.x_label && panel.y_label ? `${panel.y_label} against ${panel.x_label}` : panel.y_label, ...panel.lines.map((x) => `${x.label}: ${ends(x)}`)]
      .filter(Boolean).map((x) => prm.visible(x)).join(". ");
    const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    ys.forEach((y) => drawn.append(
      svg("path", { class: "grid", d: `M${left} ${atY(y)}H${right}` }),
      svg("text", { x: left - 6, y: atY(y) + 4, "text-anchor": "end" }, short(panel.is_share ? +(100 * y).toPrecision(6) : y))));
    if (high) drawn.append(svg("text", { x: 0, y: 11 }, prm.visible(panel.y_label)));
    const many = panel.x_names.length ? 1 : Math.ceil(xs.length / (wide ? 12 : 7));
    xs.forEach((x, i) => {
      if ((xs.length - 1 - i) % many) return;
      const words = prm.visible(panel.x_names.length ? nameOf(x) : short(x));
      if (low) {
        drawn.append(svg("text", { transform: `translate(${atX(x) + 4} ${bottom + 12}) rotate(-40)`, "text-anchor": "end" },
          words.length > 12 ? `${words.slice(0, 11)}…` : words));
        return;
      }
      drawn.append(svg("text", { x: atX(x), y: bottom + 16, "text-anchor": words.length > 4 && atX(x) >= right ? "end" : "middle" }, words.length > 9 ? `${words.slice(0, 8)}…` : words));
    });
    drawn.append(svg("path", { class: "axis", d: `M${left} ${bottom}H${right}` }),
      svg("text", { x: (left + right) / 2, y: bottom + 34 + low, "text-anchor": "middle" }, prm.visible(panel.x_label)));
    if (panel.has_diagonal) drawn.append(svg("path", { class: "diagonal", d: path([at(0, 0), at(1, 1)]) }));
    panel.marks.forEach((x) => drawn.append(svg("path", { class: "diagonal", d: `M${atX(x)} ${top}V${bottom}` })));
    panel.lines.map((line, i) => draw(line, i, at, said)).reverse().forEach((x) => drawn.append(x));
    const lines = panel.lines.length > 1 || !panel.title.startsWith(panel.lines[0].label)
      ? el("ul", { class: "lines" }, ...panel.lines.map((line, i) => el("li", {}, swatch(i), " ", ...named(line.label))))
      : null;
    return el("figure", { class: isAlone ? "alone" : null },
      el("figcaption", {}, ...named(panel.title || panel.y_label)), drawn, lines);
  }

  return chart;
})();
