// Draws the report of a run, or several beside each other, from the document in the page. Text is only ever set as text.
"use strict";
(() => {
  const report = JSON.parse(document.getElementById("document").textContent);
  const main = document.getElementById("report");

  // ---- elements

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes ?? {})) if (value !== undefined) made.setAttribute(key, value);
    for (const child of children.flat()) if (child !== undefined && child !== null) made.append(child);
    return made;
  }

  function table(columns, rows) {
    const head = element("tr", {}, columns.map(({ title, number }) => element("th", { scope: "col", class: number ? "number" : undefined }, title)));
    const body = rows.map((row) => element("tr", {}, row.map((cell, index) => element("td", { class: [columns[index].number && "number", cell?.class].filter(Boolean).join(" ") || undefined }, cell?.text ?? cell))));
    return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, body)));
  }

  const definitions = (name, pairs) => element("dl", { class: name }, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "").flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]));

  // ---- numbers as people read them

  const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
  const milliseconds = (value) => (value >= 1_000 ? `${number(value / 1_000, value < 10_000 ? 2 : 1)} s` : `${number(value, value < 1 ? 2 : value < 100 ? 1 : 0)} ms`);
  const count = (value) => (value >= 1e6 ? `${number(value / 1e6, 1)} M` : value >= 1e4 ? `${number(value / 1e3, 1)} k` : number(value, value < 10 ? 1 : 0));
  const perSecond = (value) => `${count(value)}/s`;
  const cores = (value) => number(value, 2);
  const bytes = (value) => (value >= 2 ** 30 ? `${number(value / 2 ** 30, 2)} GiB` : `${number(value / 2 ** 20, value < 10 * 2 ** 20 ? 1 : 0)} MiB`);
  const seconds = (value) => (value >= 120 ? `${Math.floor(value / 60)}:${String(Math.round(value % 60)).padStart(2, "0")} min` : `${number(value, value < 10 ? 2 : 1)} s`);
  const greatestOf = (values) => values.reduce((most, value) => (isNumber(value) && value > most ? value : most), 0);
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  // ---- the measured parts, as crates/lab/src/report/parts.rs finds them

  /** What the bench is about, and what it is compared with. */
  const FIRST = ["outcome", "idle"];

  function partsOf(value, path = "") {
    if (Array.isArray(value)) return value.flatMap((inner, index) => partsOf(inner, path === "" ? `${index + 1}` : `${path}.${index + 1}`));
    if (typeof value !== "object" || value === null || path === "run") return [];
    const figures = value.stretch ? { ...value, ...value.stretch } : value;
    if (figures.latency && isNumber(figures.latency.p50)) return [{ ...figures, title: figures.title || path.replace(/\.measured$/u, "") }];
    const names = Object.keys(value).sort((one, other) => Number(FIRST.includes(other)) - Number(FIRST.includes(one)));
    return names.flatMap((name) => partsOf(value[name], path === "" ? name : `${path}.${name}`));
  }

  // ---- plots

  const redraws = [];
  let palette;

  /** Canvas knows no variables of CSS: their values as they are now. */
  function readPalette() {
    const probe = document.body.appendChild(document.createElement("span"));
    palette = (name) => {
      document.body.append(probe);
      probe.style.color = `var(--${name})`;
      const value = getComputedStyle(probe).color;
      probe.remove();
      return value;
    };
  }

  function withAlpha(colour, alpha) {
    const parts = colour.match(/[\d.]+/g);
    return parts && colour.startsWith("rgb") ? `rgba(${parts[0]}, ${parts[1]}, ${parts[2]}, ${alpha})` : colour;
  }

  /**
   * @param options.x values of the horizontal axis; @param options.series `{ label, values, colour, dash, fill }` each.
   * `log`: the vertical axis counts in powers of ten. `xLabels`: what stands at the axis; `marks`: moments with a name.
   */
  function plot({ title, note, x, series, format, bounds = [], log = false, xFormat = seconds, xSplits, wide = false, height = 220, highest, step = false, marks = [] }) {
    const drawn = series.filter(({ values }) => values.some(isNumber));
    if (drawn.length === 0 || x.length === 0) return undefined;
    const place = element("div", { "aria-hidden": "true" });
    const at = element("span", {}, note ?? "");
    const values = drawn.map(() => element("strong"));
    const swatches = drawn.map(({ colour }, index) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = `var(--${colour ?? `plot-${index % 6}`})`;
      return swatch;
    });
    const legend = element("ul", { class: "legend" }, drawn.map(({ label }, index) => element("li", {}, swatches[index], `${label} `, values[index])));
    const figure = element("figure", { class: wide ? "plot is-wide" : "plot" }, element("figcaption", {}, element("b", {}, title), at), place, legend);
    // Without a pointer the legend tells the greatest value of each line, since that is what one looks for.
    const show = (index) => {
      at.textContent = index === undefined ? note ?? "" : xFormat(x[index]);
      drawn.forEach((line, which) => {
        const value = index === undefined ? greatestOf(line.values) : line.values[index];
        values[which].textContent = isNumber(value) ? `${index === undefined ? "max " : ""}${format(value)}` : "–";
      });
    };
    show(undefined);
    let own;
    redraws.push(() => {
      own?.destroy();
      const soft = palette("text-soft"), line = palette("line");
      const axis = { stroke: soft, font: "12px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false } };
      const most = Math.max(...drawn.map((one) => greatestOf(one.values)), highest ?? 0);
      const positive = drawn.flatMap((one) => one.values).filter((value) => isNumber(value) && value > 0);
      const least = positive.reduce((one, other) => Math.min(one, other), Infinity);
      const scale = log ? { distr: 3, range: () => [10 ** Math.floor(Math.log10(least)), 10 ** Math.ceil(Math.log10(Math.max(most, least) * 1.02))] } : { range: () => [0, most > 0 ? most * 1.12 : 1] };
      own = new uPlot(
        {
          width: Math.max(200, place.clientWidth), height, padding: [12, 26, 0, 0], legend: { show: false },
          cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
          scales: { x: { time: false, range: (_, low, high) => [Math.min(0, low), high > low ? high : low + 1] }, y: scale },
          axes: [
            { ...axis, size: 30, space: 70, values: (_, splits) => splits.map((value) => xFormat(value)), ...(xSplits && { splits: () => xSplits }) },
            // Of a logarithmic axis only the powers of ten; of bytes, steps of powers of two.
            { ...axis, size: 68, space: 34, values: (_, splits) => splits.map((value) => (isNumber(value) ? format(value) : "")), ...(log && { splits: (_, __, low, high) => powersOfTen(low, high) }), ...(format === bytes && { incrs: POWERS_OF_TWO }) },
          ],
          series: [{}, ...drawn.map(({ label, colour, dash, fill, width }, index) => {
            const stroke = palette(colour ?? `plot-${index % 6}`);
            return { label, stroke, width: width ?? 2, dash, spanGaps: true, fill: fill ? withAlpha(stroke, 0.13) : undefined, points: { show: drawn[index].values.filter(isNumber).length < 3, size: 7 }, paths: step ? uPlot.paths.stepped({ align: 1 }) : undefined };
          })],
          hooks: { setCursor: [({ cursor: { idx } }) => show(idx ?? undefined)], draw: [(drawnPlot) => { drawMarks(drawnPlot, marks); drawBounds(drawnPlot, bounds); }] },
        },
        [x, ...drawn.map((one) => one.values.map((value) => (isNumber(value) && (!log || value > 0) ? value : null)))],
        place,
      );
    });
    new ResizeObserver(() => own?.setSize({ width: Math.max(200, place.clientWidth), height })).observe(place);
    return figure;
  }

  /** A dashed line for each fault, and for each jump of a rate, with its name beside it. */
  function drawMarks({ ctx, bbox, scales, valToPos }, marks) {
    const shown = marks.filter(({ at }) => at >= scales.x.min && at <= scales.x.max);
    if (shown.length === 0) return;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.strokeStyle = palette("text-soft");
    ctx.fillStyle = palette("text-soft");
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    shown.forEach(({ at, name }, index) => {
      const x = Math.round(valToPos(at, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      // At the right edge the name stands to the left; neighbours take turns in height.
      ctx.textAlign = x > bbox.left + bbox.width * 0.8 ? "right" : "left";
      ctx.fillText(name, x + (ctx.textAlign === "right" ? -4 : 4) * ratio, bbox.top + (index % 2) * 13 * ratio);
    });
    ctx.restore();
  }

  /** A line for each threshold of what is plotted, with its name above it. */
  function drawBounds({ ctx, bbox, scales, valToPos }, bounds) {
    const ratio = devicePixelRatio || 1;
    for (const { at, name } of bounds.filter(({ at: value }) => value > scales.y.min && value < scales.y.max)) {
      const y = Math.round(valToPos(at, "y", true));
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = palette("bad");
      ctx.lineWidth = ratio;
      ctx.setLineDash([6 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "right";
      ctx.textBaseline = "bottom";
      ctx.fillText(name, bbox.left + bbox.width - 4 * ratio, y - 3 * ratio);
      ctx.restore();
    }
  }

  /** The thresholds of a part's latency, which are drawn where it is plotted over time. */
  const latencyBounds = (part) => (report.run?.criteria ?? [])
    .filter((criterion) => criterion.name === "threshold" && criterion.part === part.title)
    .map(({ bound }) => ({ name: bound, at: Number(/^(?:p[\d.]+|max|mean) <=? ([\d.]+) ms$/u.exec(bound)?.[1]) }))
    .filter(({ at }) => isNumber(at));

  const POWERS_OF_TWO = Array.from({ length: 24 }, (_, index) => 2 ** (16 + index));

  function powersOfTen(low, high) {
    const [first, last] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
    return Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
  }

  const grid = (...figures) => {
    const shown = figures.filter(Boolean);
    if (shown.length === 0) return undefined;
    // An odd last plot takes the whole row.
    const narrow = shown.filter((figure) => !figure.classList.contains("is-wide"));
    if (narrow.length % 2 === 1) narrow.at(-1).classList.add("is-wide");
    return element("div", { class: "plots" }, shown);
  };

  // ---- one part of a run

  /** The nines of a percentile: 90 is 1, 99 is 2, so that what is rare has room. */
  const nines = (percentile) => -Math.log10(Math.max(1e-7, 1 - percentile / 100));
  const percentileName = (value) => (value < 0.01 ? "0" : Math.abs(value - 0.30103) < 0.02 ? "p50" : `p${number(100 * (1 - 10 ** -value), Math.max(0, Math.round(value) - 2) + (Math.abs(value - Math.round(value)) < 0.01 ? 0 : 1))}`);

  function curves(named, wide, note = "to p100") {
    const shown = named.filter(([, curve]) => curve?.length > 1);
    if (shown.length === 0) return undefined;
    // Points of p100 stand one step beyond the last percentile that is less.
    const placed = shown.map(([label, curve, colour]) => {
      const below = curve.filter(([percentile]) => percentile < 100).map(([percentile, value]) => [nines(percentile), value]);
      const last = below.at(-1)?.[0] ?? 0;
      return { label, colour, points: [...below, [last + 0.3, curve.at(-1)[1]]] };
    });
    const x = [...new Set(placed.flatMap(({ points }) => points.map(([at]) => at)))].sort((one, other) => one - other);
    const series = placed.map(({ label, colour, points }) => {
      const byPlace = new Map(points);
      return { label, colour, values: x.map((at) => byPlace.get(at) ?? null) };
    });
    const splits = [0.30103, 1, 2, 3, 4, 5, 6].filter((value) => value <= x.at(-1));
    return plot({ title: "Latency by percentile", note, x, series, format: milliseconds, log: true, xFormat: percentileName, xSplits: splits, wide });
  }

  function timePlots(part) {
    const { series, samples } = part;
    const figures = [];
    // What never happened is left out.
    const some = (values) => (values?.some((value) => value > 0) ? values : []);
    const timed = (options) => plot({ ...options, marks: part.marks });
    const width = series?.bin_s ?? 1;
    const bins = series?.planned?.length ?? 0;
    if (bins > 0) {
      const x = series.planned.map((_, index) => index * width);
      // What comes after the last planned moment falls into one bin more, which is hardly begun: its rates would be a drop to nothing.
      const lastPlanned = series.planned.findLastIndex((value) => value > 0);
      const begun = lastPlanned === bins - 2 ? bins - 1 : bins;
      // What a run does not count at all is left out: a closed loop plans nothing, popups deliver nothing.
      const rates = (values) => some(values).map((value, index) => (index < begun ? value / width : null));
      const spread = Math.max(...series.max.filter(isNumber), 0) / Math.max(0.01, Math.min(...series.p50.filter((value) => value > 0)));
      const bounds = latencyBounds(part);
      const farthest = greatestOf(bounds.map(({ at }) => at));
      figures.push(timed({
        title: "Latency over time", note: `of what was due in each ${seconds(width)}`, x, wide: true, height: 260, format: milliseconds, log: spread > 30, bounds,
        // A bound that is near is shown, one that is far would flatten the curves.
        highest: farthest < 4 * greatestOf(series.max) ? farthest : 0,
        series: [{ label: "p100", values: series.max, colour: "plot-4", width: 1.5 }, { label: "p99", values: series.p99, colour: "plot-2" }, { label: "p50", values: series.p50, colour: "plot-0" }],
      }));
      figures.push(curves([[received(part), part.latency_curve, "plot-0"], ["acknowledged", part.acknowledged_curve, "plot-1"]]));
      figures.push(timed({
        title: "Rate", note: "planned and achieved", x, format: perSecond,
        series: [{ label: "planned", values: rates(series.planned), colour: "plot-6", dash: [6, 4], width: 1.5 }, { label: "sent", values: rates(series.sent), colour: "plot-2", width: 1.5 }, { label: "acknowledged", values: rates(series.acknowledged), colour: "plot-1" }],
      }));
      figures.push(timed({ title: "Deliveries", x, format: perSecond, series: [{ label: "delivered", values: rates(series.delivered), colour: "plot-0", fill: true }] }));
      figures.push(timed({ title: "The lab's own lag", note: "sent later than planned, by its own fault", x, format: milliseconds, highest: 1, series: [{ label: "worst", values: series.lag_max, colour: "plot-3", fill: true, width: 1.5 }] }));
    } else {
      figures.push(curves([[received(part), part.latency_curve, "plot-0"], ["acknowledged", part.acknowledged_curve, "plot-1"]]));
    }
    if (samples?.at?.length > 1) {
      const x = samples.at;
      const others = samples.machine_cores.map((all, index) => Math.max(0, all - (samples.server_cores[index] ?? 0) - samples.lab_cores[index]));
      figures.push(timed({
        title: "CPU", note: "cores", x, format: cores,
        series: [{ label: "server", values: samples.server_cores, colour: "plot-0" }, { label: "lab", values: samples.lab_cores, colour: "plot-3" }, { label: samples.server_cores.some(isNumber) ? "other work of this machine" : "all other work of this machine", values: others, colour: "plot-6", dash: [6, 4], width: 1.5 }],
      }));
      figures.push(timed({ title: "Server memory", note: "resident", x, format: bytes, series: [{ label: "server", values: samples.server_bytes, colour: "plot-0", fill: true }] }));
      const label = (name) => name.replace(/^tidings_/u, "").replace(/^queue_depth\{queue="(.*)"\}$/u, "$1").replaceAll("_", " ");
      figures.push(timed({ title: "Queues of the server", note: "what waits, from /metrics", x, format: count, series: Object.entries(samples.metrics).map(([name, values]) => ({ label: label(name), values })).sort((one, other) => Math.max(...other.values.filter(isNumber)) - Math.max(...one.values.filter(isNumber))).slice(0, 6) }));
    }
    const kernel = samples?.kernel;
    if (samples?.at?.length > 1 && kernel) {
      const x = samples.at;
      figures.push(timed({ title: "Connections accepted", note: "by all listeners of this machine", x, format: perSecond, series: [{ label: "accepted", values: some(kernel.accepted_per_second), colour: "plot-0", fill: true }] }));
      figures.push(timed({ title: "What waits at the kernel", note: "backlog of the fullest listener, ports in TIME-WAIT", x, format: count, series: [{ label: "backlog", values: some(kernel.backlog), colour: "plot-2" }, { label: "TIME-WAIT", values: some(kernel.time_wait), colour: "plot-6", dash: [6, 4], width: 1.5 }] }));
      figures.push(timed({ title: "What the kernel dropped or sent again", note: "since the sample before", x, format: count, series: [{ label: "listen overflows", values: some(kernel.listen_overflows), colour: "plot-4" }, { label: "listen drops", values: some(kernel.listen_drops), colour: "plot-3" }, { label: "retransmits", values: some(kernel.retransmits), colour: "plot-1" }] }));
    }
    if (part.rounds?.length > 1) {
      figures.push(plot({ title: "To the last receiver", note: "round by round", x: part.rounds.map((_, index) => index + 1), xFormat: (value) => number(value, 0), format: milliseconds, series: [{ label: "round", values: part.rounds, colour: "plot-0" }] }));
    }
    return grid(...figures);
  }

  /** What the latency is of: popups are asked for, devices are bound, and neither delivers. */
  const received = (part) => (isNumber(part.delivered) ? "delivered" : "answered");

  const QUANTILES = [["p50", "p50"], ["p90", "p90"], ["p99", "p99"], ["p99_9", "p99.9"], ["p99_99", "p99.99"], ["max", "p100"]];
  const rateOf = (part) => (["committed", "answers", "chunks"].map((name) => part[name]).find(isNumber) ?? NaN) / Math.max(1e-9, part.seconds);

  function tiles(part) {
    const shown = [];
    const add = (title, value, unit) => shown.push(element("div", { class: "tile" }, element("dt", {}, title), element("dd", {}, value, unit ? element("small", {}, unit.startsWith("/") ? unit : ` ${unit}`) : undefined)));
    if (isNumber(rateOf(part))) add(isNumber(part.committed) ? "Messages" : isNumber(part.chunks) ? "Chunks" : "Answers", count(rateOf(part)), "/s");
    if (isNumber(part.delivered)) add("Deliveries", count(part.delivered / Math.max(1e-9, part.seconds)), "/s");
    add("Latency p50", milliseconds(part.latency.p50));
    add("p99", milliseconds(part.latency.p99));
    add("p100", milliseconds(part.latency.max));
    if (isNumber(part.lost)) add("Faults", number(part.lost + part.doubled + part.out_of_order + part.altered), `of ${count(part.expected)}`);
    if (isNumber(part.server_cpu_seconds)) add("Server CPU", cores(part.server_cpu_seconds / Math.max(1e-9, part.seconds)), "cores");
    return element("dl", { class: "tiles" }, shown);
  }

  /** All parts beside each other: what a bench of several parts is run for. */
  function overview(parts) {
    const columns = [{ title: "" }, { title: "a second", number: true }, ...QUANTILES.map(([, title]) => ({ title, number: true })), { title: "server CPU", number: true }, { title: "server memory", number: true }];
    // The steps of a search are called alike: their rates tell them apart.
    const titles = parts.map(({ title }) => title);
    const labels = parts.map((part) => (titles.filter((title) => title === part.title).length > 1 && isNumber(rateOf(part)) ? `${part.title}, ${number(rateOf(part))}/s` : part.title));
    const rows = parts.map((part, index) => [labels[index], isNumber(rateOf(part)) ? count(rateOf(part)) : "–", ...QUANTILES.map(([field]) => (isNumber(part.latency[field]) ? milliseconds(part.latency[field]) : "–")), isNumber(part.server_cpu_seconds) ? cores(part.server_cpu_seconds / Math.max(1e-9, part.seconds)) : "–", isNumber(part.server_rss_bytes) ? bytes(part.server_rss_bytes) : "–"]);
    const shown = parts.slice(0, 6);
    const of = (value) => parts.map((part) => (isNumber(value(part)) ? value(part) : null));
    const figures = parts.length > 24 ? [] : [
      parts.every(({ rounds }) => rounds?.length > 1) ? ladder({ title: "To the last receiver", note: "of all rounds", labels, format: milliseconds, wide: true, series: [["least", 0, "plot-0"], ["median", 0.5, "plot-2"], ["most", 1, "plot-4"]].map(([label, share, colour]) => ({ label, colour, values: of(({ rounds }) => rounds.toSorted((one, other) => one - other)[Math.floor((rounds.length - 1) * share)]) })) }) : undefined,
      ladder({ title: "Latency of each part", note: "p50, p99, p100", labels, format: milliseconds, wide: true, series: [["p50", "p50", "plot-0"], ["p99", "p99", "plot-2"], ["p100", "max", "plot-4"]].map(([label, field, colour]) => ({ label, colour, values: of(({ latency }) => latency[field]) })) }),
      ladder({ title: "Server CPU", note: "cores", labels, format: cores, series: [{ label: "server", colour: "plot-0", values: of((part) => part.server_cpu_seconds / Math.max(1e-9, part.seconds)) }] }),
      ladder({ title: "Server memory", note: "resident, at the end", labels, format: bytes, series: [{ label: "server", colour: "plot-0", values: of((part) => part.server_rss_bytes) }] }),
    ];
    figures.push(curves(shown.map((part, index) => [labels[index], part.latency_curve, `plot-${index}`]), true, parts.length > shown.length ? `to p100, of the first ${shown.length} parts` : undefined));
    return element("section", {}, element("h2", {}, "Side by side"), grid(...figures) ?? "", table(columns, rows));
  }

  /** Round numbers from 0 on, four to nine of them. */
  function evenSplits(most) {
    const power = 10 ** Math.floor(Math.log10(most / 4));
    const step = [1, 2, 5].map((digit) => digit * power).findLast((one) => most / one >= 4) ?? power;
    return Array.from({ length: Math.floor(most / step) + 1 }, (_, index) => index * step);
  }

  /** A line for each part: a dot for each of its values, or a bar where there is one. Parts that lack all of them are left out. */
  function ladder({ title, note, labels, series, format, wide = false }) {
    const kept = labels.map((_, index) => index).filter((index) => series.some(({ values }) => isNumber(values[index]) && values[index] > 0));
    if (kept.length < 2) return undefined;
    const all = kept.flatMap((index) => series.map(({ values }) => values[index])).filter((value) => isNumber(value) && value > 0);
    const [most, least] = [Math.max(...all), Math.min(...all)];
    const isBar = series.length === 1;
    const log = !isBar && most > 30 * least;
    const [width, row, left, right] = wide ? [1150, 26, 330, 24] : [550, 26, 220, 74];
    const [low, high] = log ? [10 ** Math.floor(Math.log10(least)), 10 ** Math.ceil(Math.log10(most * 1.02))] : [0, most * 1.04];
    const share = (value) => (log ? Math.log10(value / low) / Math.log10(high / low) : value / high);
    const at = (value) => left + (width - left - right) * Math.min(1, Math.max(0, share(value)));
    const bottom = row * kept.length + 6;
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${bottom + (isBar ? 2 : 22)}`, role: "img", "aria-label": `${title}: ${kept.map((index) => `${labels[index]} ${series.map(({ label, values }) => `${label} ${isNumber(values[index]) ? format(values[index]) : "none"}`).join(", ")}`).join("; ")}` });
    for (const split of isBar ? [] : log ? powersOfTen(low, high) : evenSplits(most)) {
      svg.append(drawn("line", { x1: at(split), x2: at(split), y1: 2, y2: bottom, class: "rule" }));
      svg.append(drawn("text", { x: at(split), y: bottom + 16, class: "tick", "text-anchor": "middle" }, format(split)));
    }
    const letters = Math.floor((left - 12) / 6.7);
    kept.forEach((index, place) => {
      const y = row * place + row / 2 + 3;
      const name = labels[index];
      svg.append(drawn("text", { x: left - 12, y: y + 4, class: "side", "text-anchor": "end" }, name.length > letters ? `${name.slice(0, Math.floor(letters * 0.6))}…${name.slice(name.length - Math.floor(letters * 0.4) + 1)}` : name));
      const known = series.filter(({ values }) => isNumber(values[index]) && values[index] > 0);
      if (known.length === 0) return;
      if (isBar) {
        const value = known[0].values[index];
        svg.append(drawn("rect", { x: left, y: y - 7, width: Math.max(2, at(value) - left), height: 14, rx: 3, style: `fill: var(--${series[0].colour})` }));
        svg.append(drawn("text", { x: at(value) + 8, y: y + 4, class: "tick" }, format(value)));
        return;
      }
      const places = known.map(({ values }) => at(values[index]));
      svg.append(drawn("line", { x1: Math.min(...places), x2: Math.max(...places), y1: y, y2: y, style: "stroke: var(--text-soft)", "stroke-width": 1.5, opacity: 0.5 }));
      known.forEach(({ colour }, which) => svg.append(drawn("circle", { cx: places[which], cy: y, r: 5, style: `fill: var(--${colour})` })));
    });
    const legend = isBar ? undefined : element("ul", { class: "legend" }, series.map(({ label, colour }) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = `var(--${colour})`;
      return element("li", {}, swatch, label);
    }));
    return element("figure", { class: wide ? "plot is-wide" : "plot" }, element("figcaption", {}, element("b", {}, title), element("span", {}, note)), svg, legend);
  }

  function balance(part) {
    const latencies = [[received(part), part.latency], ["acknowledged", part.acknowledged], ["the lab's own lag", part.lateness]].filter(([, figures]) => figures && isNumber(figures.p50) && figures.max > 0);
    const figures = ["planned", "sent", "committed", "refused", "retried", "expected", "delivered", "lost", "doubled", "out_of_order", "altered", "gaps", "reconnects", "chunks", "frames", "complete", "stored_whole", "answers", "broken", "unsent"];
    const shown = figures.filter((name) => isNumber(part[name]));
    const faults = ["refused", "lost", "doubled", "out_of_order", "altered", "gaps", "broken", "unsent"];
    return [
      element("h3", {}, "Percentiles, in milliseconds"),
      table([{ title: "" }, ...QUANTILES.map(([, title]) => ({ title, number: true }))], latencies.map(([name, figures]) => [name, ...QUANTILES.map(([field]) => number(figures[field], 2))])),
      element("h3", {}, "Balance sheet"),
      table([...shown.map((name) => ({ title: name.replaceAll("_", " "), number: true }))], [shown.map((name) => ({ text: number(part[name]), class: faults.includes(name) && part[name] > 0 ? "missed" : undefined }))]),
      part.problems?.length > 0 ? element("ul", { class: "problems" }, part.problems.map((problem) => element("li", {}, problem))) : undefined,
    ];
  }

  function partSection(part, isOnly) {
    const took = isNumber(part.seconds) ? `over ${seconds(part.seconds)}` : "";
    return element("section", {},
      element("h2", {}, isOnly ? "Over time" : part.title, took ? element("span", { class: "soft" }, ` ${took}`) : undefined),
      isOnly ? undefined : tiles(part), timePlots(part), balance(part), agentsTable(part));
  }

  /** Load from several machines: what each did, and whether it kept up. */
  function agentsTable(part) {
    if (!part.agents?.length) return undefined;
    const columns = [{ title: "Agent" }, { title: "Machine" }, ...["receivers", "senders", "sent", "delivered", "lost", "CPU", "p50", "p99", "p100", "late p99", "loop late p99", "clock"].map((title) => ({ title, number: true })), { title: "" }];
    const rows = part.agents.map((agent) => [
      agent.address, `${agent.machine.host}: ${agent.machine.cores} cores, ${number(agent.machine.descriptors)} descriptors, load ${agent.machine.load} to ${agent.load_after}`,
      number(agent.receivers), number(agent.senders), number(agent.sent), `${number(agent.delivered)} of ${number(agent.expected)}`,
      { text: number(agent.lost), class: agent.lost > 0 ? "missed" : undefined }, seconds(agent.client_cpu_seconds),
      ...["p50", "p99", "max"].map((field) => milliseconds(agent.latency[field])), milliseconds(agent.lateness.p99), milliseconds(agent.loop_lag.p99),
      `${number(agent.clock_offset_ms, 3)} ± ${number(agent.clock_error_ms, 3)} ms`,
      { text: agent.lagged ? "✕ could not keep up" : "✓ kept up", class: `state ${agent.lagged ? "missed" : "met"}` },
    ]);
    return [
      element("h3", {}, "Agents"), table(columns, rows),
      isNumber(part.clock_error_ms) ? element("p", { class: "soft" }, `A latency from one agent to another is off by ${number(part.clock_error_ms, 3)} ms at most. ${number(part.negative_latencies)} deliveries came before their time by the corrected clocks, by ${number(part.negative_latency_max_ms, 3)} ms at most, and count as 0.`) : undefined,
    ];
  }

  // ---- the whole

  const MARKS = { passed: ["is-good", "✓"], failed: ["is-bad", "✕"] };

  function verdictBox(run) {
    const [tone, mark] = MARKS[run.verdict] ?? ["is-warn", "!"];
    const title = run.verdict.charAt(0).toUpperCase() + run.verdict.slice(1);
    return element("div", { class: `verdict ${tone}` }, element("span", { class: "mark", "aria-hidden": "true" }, mark), element("div", {}, element("strong", {}, title), run.sentence));
  }

  /** Long whole numbers in a text, with their thousands apart. */
  const grouped = (text) => text.replace(/(?<![.\d])\d{5,}(?![.\d])/gu, (digits) => number(Number(digits)));

  function criteria(run) {
    if (!run.criteria?.length) return undefined;
    // With one part, each line speaks of it.
    const several = partsOf(report).length > 1 || run.criteria.some(({ name }) => name === "the agent's own lag");
    return element("section", {}, element("h2", {}, "Held to"), table(
      [{ title: "" }, { title: "What" }, ...(several ? [{ title: "Where" }] : []), { title: "Bound" }, { title: "Measured", number: true }],
      run.criteria.map(({ name, part, bound, value, met }) => [{ text: met ? "✓ met" : "✕ missed", class: `state ${met ? "met" : "missed"}` }, name, ...(several ? [part] : []), bound, name === "threshold" && value !== "" && isNumber(Number(value)) ? `${number(Number(value), 2)} ${bound.split(" ").at(-1)}` : grouped(value)]),
    ));
  }

  function about(run) {
    const { machine, kernel } = run;
    const counted = Object.entries(kernel ?? {}).filter(([, value]) => value > 0).map(([name, value]) => `${name.replaceAll("_", " ")} ${number(value)}`);
    return element("section", {}, element("h2", {}, "Where and what"), definitions("about", [
      ["Command", element("code", {}, run.command)],
      ["Program", `tidings ${run.version}, commit ${run.commit}`],
      ["Started", new Date(run.started_at).toISOString().replace("T", " ").slice(0, 19) + " UTC"],
      ["Took", `${seconds(run.seconds)}, with set-up and check`],
      ["Machine", `${machine.cores} cores, ${machine.cpu}, ${bytes(machine.memory_bytes)}`],
      ["Kernel", `Linux ${machine.kernel}, clock ${machine.clock_source}`],
      ["Load before", isNumber(machine.load_before) ? `${machine.load_before}` : undefined],
      ["The kernel counted", counted.join(", ") || "no swapping, no throttling, no drops, no retransmits"],
    ]));
  }

  /** Latencies that are no part of their own, such as those of devices. */
  function otherPercentiles() {
    const rows = [];
    const walk = (inner, path) => {
      if (typeof inner !== "object" || inner === null || path === "run" || inner.latency) return;
      if (isNumber(inner.p50) && isNumber(inner.p99)) {
        if (inner.max > 0) rows.push([path.replace(/_ms$/u, "").replaceAll("_", " ").replaceAll(".", ", "), ...QUANTILES.map(([field]) => (isNumber(inner[field]) ? milliseconds(inner[field]) : "–"))]);
      } else Object.entries(inner).forEach(([name, part]) => walk(part, path === "" ? name : `${path}.${name}`));
    };
    walk(report, "");
    return rows.length === 0 ? undefined : element("section", {}, element("h2", {}, "Latencies"), table([{ title: "" }, ...QUANTILES.map(([, title]) => ({ title, number: true }))], rows));
  }

  function allFigures(value) {
    const rows = [];
    const walk = (inner, path) => {
      if (typeof inner === "object" && inner !== null) {
        if (Array.isArray(inner) && !inner.some((part) => typeof part === "object" && part !== null && !Array.isArray(part))) return;
        Object.entries(inner).forEach(([name, part]) => path === "" && name === "run" || ["series", "samples"].includes(name) || walk(part, path === "" ? name : `${path}.${name}`));
      } else if (inner !== null && inner !== "") rows.push([element("code", {}, path), isNumber(inner) ? number(inner, 3) : String(inner)]);
    };
    walk(value, "");
    return rows;
  }

  /** What the searches of a scenario found. */
  function searches() {
    const of = ({ name, last_good: good, broke }) => {
      const rate = (step) => `step ${step.step} at ${number(step.rate)}/s`;
      const found = broke ? `At ${rate(broke)} ${broke.work} broke: ${broke.sentence}.` : "Nothing broke.";
      return element("p", { class: "said" }, element("b", {}, `${name}: `), `${good ? `the last good step is ${rate(good)}` : "no step was good"}. ${found}`);
    };
    return (report.phases ?? []).filter(({ steps }) => steps).map(of);
  }

  function runPage() {
    const { run } = report;
    const parts = partsOf(report);
    const figures = allFigures(report);
    const details = element("details", {}, element("summary", {}, `All ${figures.length} figures`), element("div", { class: "figures" }, table([{ title: "Figure" }, { title: "Value", number: true }], figures)));
    if (parts.length === 0) details.open = true;
    main.append(
      element("p", { class: "eyebrow" }, "Tidings lab"),
      element("h1", {}, report.scenario ? report.scenario : parts.length === 1 && parts[0].title ? parts[0].title.charAt(0).toUpperCase() + parts[0].title.slice(1) : `bench ${report.bench}`),
      report.about ? element("p", {}, report.about) : "",
      element("p", { class: "command" }, element("code", {}, run.command)),
      verdictBox(run),
      ...searches(),
      run.doubts?.length > 0 ? element("ul", { class: "doubts" }, run.doubts.map((doubt) => element("li", {}, doubt))) : "",
      parts.length > 0 && parts.length === 1 ? tiles(parts[0]) : "",
      parts.length > 1 ? overview(parts) : "",
      criteria(run) ?? "",
      otherPercentiles() ?? "",
      ...parts.map((part) => partSection(part, parts.length === 1)),
      about(run), details,
      element("footer", {}, "Latency counts from the planned send. Plots by uPlot, MIT licence. report.json and the CSV files beside this page have every figure."),
    );
  }

  // ---- several reports beside each other

  const COLOURS = ["plot-0", "plot-2", "plot-1", "plot-3", "plot-5", "plot-4"];

  const drawn = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  /** A line for each side: the mean as a dot, the interval around it, and the rounds' least and most. */
  function intervals({ name, unit, means, verdicts }, sides) {
    const [width, row, left, right] = [560, 30, 130, 16];
    const known = means.filter(Boolean);
    if (known.length === 0) return undefined;
    const most = Math.max(...known.map((one) => Math.max(one.most, one.mean + (one.half_width ?? 0)))) || 1;
    const at = (value) => left + ((width - left - right) * Math.max(0, value)) / (most * 1.06);
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${row * means.length + 26}`, role: "img", "aria-label": `${name}: ${means.map((one, index) => `${sides[index].name} ${one ? number(one.mean, 2) : "none"}`).join(", ")}` });
    for (const share of [0, 0.5, 1]) {
      svg.append(drawn("line", { x1: at(most * share), x2: at(most * share), y1: 4, y2: row * means.length + 4, class: "rule" }));
      svg.append(drawn("text", { x: at(most * share), y: row * means.length + 20, class: "tick", "text-anchor": "middle" }, number(most * share, most < 10 ? 2 : most < 100 ? 1 : 0)));
    }
    means.forEach((one, index) => {
      const y = row * index + row / 2 + 4;
      const colour = `stroke: var(--${COLOURS[index % 6]}); fill: var(--${COLOURS[index % 6]})`;
      svg.append(drawn("text", { x: left - 12, y: y + 4, class: "side", "text-anchor": "end" }, sides[index].name.length > 17 ? `${sides[index].name.slice(0, 16)}…` : sides[index].name));
      if (!one) return;
      if (one.rounds > 1) svg.append(drawn("line", { x1: at(one.least), x2: at(one.most), y1: y, y2: y, style: colour, "stroke-width": 1.5, opacity: 0.45 }));
      if (one.half_width !== null) svg.append(drawn("line", { x1: at(one.mean - one.half_width), x2: at(one.mean + one.half_width), y1: y, y2: y, style: colour, "stroke-width": 7, "stroke-linecap": "round", opacity: 0.35 }));
      svg.append(drawn("circle", { cx: at(one.mean), cy: y, r: 5, style: colour }));
    });
    const judged = verdicts.map((verdict, index) => verdict && element("span", { class: verdict === "better" ? "met" : "missed" }, `${sides[index].name} ${verdict}`)).filter(Boolean);
    return element("figure", { class: "plot" }, element("figcaption", {}, element("b", {}, `${name}, ${unit}`), element("span", {}, judged.length > 0 ? judged.flatMap((one, index) => (index ? [", ", one] : [one])) : "")), svg);
  }

  function comparePage() {
    const { sides, compared, sentences, cautions, run } = report;
    const shown = (one) => (one ? `${number(one.mean, 2)}${one.half_width === null ? "" : ` ± ${number(one.half_width, 2)}`}` : "–");
    const against = (difference) => (!isNumber(difference?.percent) ? "" : ` (${difference.percent > 0 ? "+" : "−"}${number(Math.abs(difference.percent), 1)} %)`);
    const titles = [...new Set(compared.map(({ part }) => part))];
    const rounds = sides.map(({ rounds: all }) => all.length);
    main.append(
      element("p", { class: "eyebrow" }, "Tidings lab"),
      element("h1", {}, sides.map(({ name }) => name).join(" · ")),
      element("p", { class: "command" }, element("code", {}, run.command)),
      ...sentences.map((sentence) => element("p", { class: "said" }, sentence)),
      verdictBox({ ...run, verdict: run.verdict === "passed" ? "passed" : run.verdict }),
      cautions.length > 0 ? element("ul", { class: "doubts" }, cautions.map((caution) => element("li", {}, caution))) : "",
    );
    titles.forEach((title, part) => {
      const figures = compared.filter((figure) => figure.part === title);
      const plotted = sides.map((side) => side.plotted[part]);
      // Rounds differ in length by a bin: the longest gives the axis.
      const longest = plotted.map((one) => one?.series).filter((series) => series?.planned?.length > 0).sort((one, other) => other.planned.length - one.planned.length)[0];
      const sameBins = longest && plotted.every((one) => !one?.series?.planned?.length || one.series.bin_s === longest.bin_s);
      main.append(element("section", {},
        element("h2", {}, titles.length > 1 ? title : "Figures"),
        element("div", { class: "plots" }, figures.filter(({ means }) => means.some((one) => one && one.most > 0)).map((figure) => intervals(figure, sides))),
        element("h3", {}, "Of the round in the middle"),
        grid(
          curves(plotted.map((one, index) => [sides[index].name, one?.latency_curve, COLOURS[index % 6]]), true),
          sameBins ? plot({ title: "p99 over time", note: `of what was due in each ${seconds(longest.bin_s)}`, wide: true, x: longest.planned.map((_, index) => index * longest.bin_s), format: milliseconds, series: plotted.map((one, index) => ({ label: sides[index].name, colour: COLOURS[index % 6], values: longest.planned.map((_, bin) => one?.series?.p99?.[bin] ?? null) })) }) : undefined,
        ) ?? "",
        element("h3", {}, "Mean ± half of the 95 % confidence interval"),
        table([{ title: "Figure" }, ...sides.map(({ name }) => ({ title: name, number: true }))], figures.map(({ name, unit, means, differences, verdicts }) => [`${name}, ${unit}`, ...means.map((one, index) => ({ text: shown(one) + against(differences[index]), class: verdicts[index] === "better" ? "met" : verdicts[index] === "worse" ? "missed" : undefined }))])),
      ));
    });
    main.append(
      element("section", {}, element("h2", {}, "Method"), element("p", {}, "One round is one observation. The interval of a mean is Student's with n − 1 degrees of freedom; two sides differ where the 95 % interval of the difference of their means, in Welch's form, leaves out 0 (Georges, Buytaert, Eeckhout: Statistically Rigorous Java Performance Evaluation, OOPSLA 2007). Every figure is judged by itself: of twenty comparisons of equal things one shows a difference by chance. Dots are means, bars intervals, thin lines the least and the most of the rounds.")),
      element("section", {}, element("h2", {}, "Rounds"), table([{ title: "Side" }, { title: "Commit" }, { title: "Rounds", number: true }, { title: "Verdicts" }, { title: "Command" }], sides.map(({ name, commit, rounds: all }, index) => [name, commit, `${rounds[index]}`, [...new Set(all.map(({ verdict }) => verdict))].join(", "), element("code", {}, all[0]?.command ?? "")]))),
      element("footer", {}, "Plots by uPlot, MIT licence. report.json beside this page has every figure."),
    );
  }

  readPalette();
  if (report.bench === "compare") comparePage();
  else runPage();
  const redraw = () => redraws.forEach((draw) => draw());
  redraw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
  // Paper is white, whatever the screen is.
  addEventListener("beforeprint", () => { document.documentElement.style.colorScheme = "light"; redraw(); });
  addEventListener("afterprint", () => { document.documentElement.style.colorScheme = ""; redraw(); });
})();
