// Reports of the load lab (`tidings bench … --json FILE`), opened from the disk of whoever looks: nothing is sent anywhere.
import { useState } from "preact/hooks";
import { Badge, Card, Failure, Page, Table } from "../parts/layout.js";
import { Plot } from "../parts/plot.js";
import { compareFigures, figuresOfReport, latenciesOf, QUANTILE_NAMES, roundsOf, type Report } from "../state/report.js";
import { milliseconds } from "../state/format.js";

const BYTES_MAX = 32 << 20;

export function ReportsPage() {
  const [reports, setReports] = useState<readonly Report[]>([]);
  const [failure, setFailure] = useState<string>();

  const open = async (files: readonly File[]): Promise<void> => {
    try {
      const opened = await Promise.all(files.map(readReport));
      setFailure(undefined);
      // The newest two: what is compared.
      setReports((before) => [...before, ...opened].slice(-2));
    } catch (error) {
      setFailure(error instanceof Error ? error.message : String(error));
    }
  };

  return (
    <Page
      title="Lab reports"
      about={<>What <code>tidings bench … --json report.json</code> has written. One report is shown, two are compared. They stay in this tab.</>}
      actions={reports.length > 0 && <button type="button" class="plain" onClick={() => setReports([])}>Close {reports.length === 1 ? "it" : "both"}</button>}
    >
      <label
        class="drop"
        onDragOver={(event) => event.preventDefault()}
        onDrop={(event) => {
          event.preventDefault();
          void open([...(event.dataTransfer?.files ?? [])]);
        }}
      >
        <span>{reports.length === 0 ? "Choose one report or two, or drop them here" : "Choose another report to compare with"}</span>
        <input type="file" accept="application/json,.json" multiple onChange={(event) => void open([...(event.currentTarget.files ?? [])])} />
      </label>
      <Failure text={failure} />
      {reports.length > 0 && <Opened reports={reports} />}
    </Page>
  );
}

async function readReport(file: File): Promise<Report> {
  if (file.size > BYTES_MAX) throw new Error(`${file.name} is larger than ${BYTES_MAX >> 20} MiB: this is no report.`);
  let content: unknown;
  try {
    content = JSON.parse(await file.text()) as unknown;
  } catch {
    throw new Error(`${file.name} is no JSON.`);
  }
  if (typeof content !== "object" || content === null || typeof (content as { bench?: unknown }).bench !== "string") {
    throw new Error(`${file.name} is no report of tidings bench: it names no bench.`);
  }
  return { name: file.name, bench: (content as { bench: string }).bench, content: content as Record<string, unknown> };
}

function Opened({ reports }: { readonly reports: readonly Report[] }) {
  const [first, second] = reports;
  if (!first) return null;
  const latencies = latenciesOf(reports);
  const rounds = reports.map(roundsOf);
  return (
    <>
      {second && first.bench !== second.bench && <p class="failure-box">These are reports of two benches, {first.bench} and {second.bench}: only figures of the same name are compared.</p>}
      <div class="plots">
        {latencies.map(({ title, at, series }) => <Plot key={title} title={title} at={at} x="number" names={QUANTILE_NAMES} format={milliseconds} series={series} />)}
        {rounds.some((values) => values.length > 1) && (
          <Plot
            title="To the last receiver, each round"
            x="number"
            at={Array.from({ length: Math.max(...rounds.map((values) => values.length)) }, (_, index) => index + 1)}
            format={milliseconds}
            series={reports.map((report, index) => ({ label: `${index + 1}: ${report.name}`, values: rounds[index] ?? [] }))}
          />
        )}
      </div>
      <Card title={second ? `${first.name} and ${second.name}` : first.name} note={second ? "the second against the first" : `bench ${first.bench}`}>
        <Table
          label="Figures"
          columns={[{ title: "Figure" }, { title: first.name, isNumber: true }, ...(second ? [{ title: second.name === first.name ? `${second.name} (2)` : second.name, isNumber: true }, { title: "Change", isNumber: true }] : [])]}
          rows={compareFigures(figuresOfReport(first), second && figuresOfReport(second)).map(({ name, before, after, change, isBetter }) => ({
            key: name,
            cells: [
              <code>{name}</code>, before,
              ...(second ? [after, change === undefined ? "" : <span class={isBetter === undefined ? "" : isBetter ? "better" : "worse"}>{change}{isBetter !== undefined && <span class="sr-only">{isBetter ? ", better" : ", worse"}</span>}</span>] : []),
            ],
          }))}
        />
      </Card>
      {reports.some(({ content }) => problemsOf(content).length > 0) && (
        <Card title="Faults">
          {reports.map(({ name, content }) => problemsOf(content).map((problem) => <p key={name + problem}><Badge tone="bad">{name}</Badge> {problem}</p>))}
        </Card>
      )}
    </>
  );
}

function problemsOf(content: Readonly<Record<string, unknown>>): readonly string[] {
  const problems = (content["outcome"] as { problems?: unknown } | undefined)?.problems;
  return Array.isArray(problems) ? problems.map(String) : [];
}
