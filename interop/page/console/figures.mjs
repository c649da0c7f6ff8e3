// The parts of the console that only compute, built by Vite as the page is, and tried without a browser.
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { assert } from "../../harness/session.mjs";

const web = fileURLToPath(new URL("../../../web", import.meta.url));
const { build } = await import(pathToFileURL(createRequire(join(web, "package.json")).resolve("vite")));

async function load(names) {
  const outDir = join(process.env.INTEROP_TMP, "parts");
  const entry = Object.fromEntries(names.map((name) => [name.replace("/", "-"), join(web, "console/src", `${name}.ts`)]));
  await build({ root: web, configFile: false, logLevel: "warn", build: { outDir, emptyOutDir: true, minify: false, lib: { entry, formats: ["es"] } } });
  const parts = names.map((name) => import(pathToFileURL(join(outDir, `${name.replace("/", "-")}.js`))));
  return Object.assign({}, ...(await Promise.all(parts)));
}

const { Scrape, quantileBetween, figuresOf, totalOut, totalRefused, compareFigures, figuresOfReport, specOf, draftOf } =
  await load(["metrics/parse", "metrics/figures", "state/report", "state/popup-draft"]);

const same = (found, expected) => assert(JSON.stringify(found) === JSON.stringify(expected), `${JSON.stringify(found)} is not ${JSON.stringify(expected)}`);
const near = (found, expected) => assert(Math.abs(found - expected) < 1e-9, `${found} is not ${expected}`);

const histogram = (...counts) => ["0.1", "0.2", "0.4", "+Inf"].map((bound, index) => `t_bucket{le="${bound}",lane="group"} ${counts[index]}`).join("\n");

export const computing = [
  ["metrics are read with their labels, whatever these hold", async () => {
    const scrape = new Scrape(0, '# HELP a_total b\na_total{x="1",y="a \\"quoted\\" \\\\ b\\nc, }"} 2\na_total{x="2"} 3 1700000000\nplain 4.5\nbroken{\n');
    same(scrape.all("a_total")[0].labels, { x: "1", y: 'a "quoted" \\ b\nc, }' });
    same([scrape.value("a_total"), scrape.value("a_total", { x: "2" }), scrape.value("plain"), scrape.value("absent")], [5, 3, 4.5, 0]);
  }],
  ["a quantile is of what came between two readings", async () => {
    const between = (before, now, quantile) => quantileBetween(new Scrape(0, histogram(...before)), new Scrape(1, histogram(...now)), "t", { lane: "group" }, quantile);
    same(between([5, 5, 5, 5], [5, 5, 5, 5], 0.5), undefined);
    // Ten came, all of them between 0.1 and 0.2: the earlier thousand below 0.1 do not count.
    near(between([1000, 1000, 1000, 1000], [1000, 1010, 1010, 1010], 0.5), 0.15);
    near(between([0, 0, 0, 0], [50, 100, 100, 100], 0.25), 0.05);
    near(between([0, 0, 0, 0], [0, 0, 0, 9], 0.99), 0.4);
  }],
  ["figures are of a second, also after a restart of the server", async () => {
    const scrape = (at, out, refused) => new Scrape(at, `tidings_lane_deliveries_total{lane="group"} ${out}\ntidings_refused_total{code="queue_full"} ${refused}\n`);
    const figures = figuresOf(scrape(1_000, 100, 5), scrape(3_000, 300, 5));
    same([totalOut(figures), totalRefused(figures)], [100, 0]);
    const restarted = figuresOf(scrape(1_000, 100_000, 50), scrape(3_000, 40, 2));
    same([totalOut(restarted), totalRefused(restarted)], [20, 1]);
  }],
  ["reports are compared: what is better depends on the figure, and noise is neither", async () => {
    const figures = (content) => figuresOfReport({ name: "r", bench: "group", content });
    const compare = (before, after) => compareFigures(figures(before), figures(after)).map(({ name, change, isBetter }) => [name, change ?? null, isBetter ?? null]);
    same(compare({ outcome: { latency: { p99: 10 }, messages_per_second: 100, lost: 0, sent: 5 } }, { outcome: { latency: { p99: 20 }, messages_per_second: 101, lost: 2, sent: 10 } }), [
      ["outcome.latency.p99", "+100.0 %", false], ["outcome.messages_per_second", "+1.0 %", null], ["outcome.lost", "+2", false], ["outcome.sent", "+100.0 %", null],
    ]);
    // Figures over time are for plots: a report with them has no row for each moment.
    const withSeries = { outcome: { lost: 0, series: { bin_s: 0.25, planned: [1, 2], p99: [1.5, null] }, latency_curve: [[50, 1.5]], samples: { at: [0.5], metrics: { depth: [3] } } } };
    same([...figures(withSeries).keys()], ["outcome.lost", "outcome.series.bin_s"]);
    same(compare({ a: { rate: 1 } }, { b: "new" }), [["a.rate", null, null], ["b", null, null]]);
  }],
  ["a popup goes through its form and stays what it was", async () => {
    const spec = {
      name: "Sale", state: "live", placements: ["home", "cart"], priority: 10, starts_at: 1_764_547_200_000, ends_at: 1_767_225_659_000, time_zone: "Europe/Berlin",
      windows: [{ days: ["mon"], from: "09:00", to: "17:30" }], audience: { all: [] }, trigger: { event: "paid" }, caps: { per_day: 2, per_session: 1, total: 10, gap_s: 3600 },
      variants: [{ id: "a", weight: 0, content: { title: "<b>", text: "t", image: "i", buttons: [{ id: "go", label: "Go", action: { type: "open", url: "app://x" } }, { id: "n", label: "", action: { type: "dismiss" } }], data: { colour: "#e33" } } }],
      control_percent: 5.25, conversion: { event: "purchase", within: "7d", value: "total" }, strict: true, test_users: ["alice"],
    };
    same(specOf(draftOf(spec)), { spec, mistakes: {} });
    // What the form has no field for stays.
    const { spec: kept } = specOf({ ...draftOf({ ...spec, journey: "start", after: { dismiss: "7d" } }), priority: "11" });
    same([kept.journey, kept.after, kept.priority], ["start", { dismiss: "7d" }, 11]);
    const least = { state: "draft", placements: ["home"], variants: [{ id: "a", weight: 1, content: {} }] };
    same(specOf(draftOf(least)).spec, least);
    const { spec: none, mistakes } = specOf({ ...draftOf(spec), audience: "{", priority: "ten" });
    assert(none === undefined && mistakes.audience.includes("no JSON") && mistakes.priority.includes("no number"), mistakes);
  }],
];
