// Reports of messages: a list by state, each with its message in its context, and what a moderator does about it.
import { useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { bodyText } from "../parts/entry.js";
import { Outcome, Tabs, TextField } from "../parts/form.js";
import { Badge, Card, Facts, Failure, Foreign, Loaded, Page, Reload, Time } from "../parts/layout.js";
import { words } from "../parts/notification-check.js";
import { PagedTable, usePages } from "../parts/paged-table.js";
import { ask, change, path, withQuery } from "../state/api.js";
import { dateTime } from "../state/format.js";
import { may } from "../state/own-key.js";
import { href, type Route } from "../state/route.js";
import type { Entry, Report, ReportDetails, ReportPage, ReportState } from "../state/types.js";
import { useAction, useAsk, type Asked } from "../state/use-ask.js";

const STATES = [["open", "Open"], ["in_review", "In review"], ["resolved", "Resolved"], ["dismissed", "Dismissed"]] as const satisfies readonly (readonly [ReportState, string])[];

export function ModerationPage({ route }: { readonly route: Route }) {
  const [, id] = route.parts;
  return (
    <Page title="Reports" about="Messages that members have reported. A message is shown as it is now: one that was recalled has no body.">
      {id === undefined ? <List /> : <One key={id} id={id} />}
    </Page>
  );
}

function List() {
  const [state, setState] = useState<ReportState>("open");
  const pages = usePages<ReportPage>(withQuery("/v1/reports", { state }));
  return (
    <Card title="Reports" note="the oldest first" actions={<><Tabs label="State" tabs={STATES} chosen={state} onChoose={setState} /><Reload asked={pages} /></>}>
      <PagedTable
        pages={pages}
        label="Reports"
        empty="No report is in this state."
        columns={[{ title: "Reported" }, { title: "Reason" }, { title: "Message" }, { title: "By" }, { title: "Changed" }, { title: "" }]}
        rows={({ reports }) => reports.map((report) => ({
          key: report.id,
          cells: [
            <Time at={report.at} />,
            <><Badge tone="warn">{words(report.reason)}</Badge>{report.text ? <p class="setting-about"><Foreign>{report.text}</Foreign></p> : null}</>,
            <><Person id={report.reported} /> <Body of={report.message} /></>,
            <Person id={report.reporter} />,
            report.changed_at ? <><Time at={report.changed_at} /><p class="setting-about">by <Foreign>{report.by ?? ""}</Foreign></p></> : "never",
            <a class="link" href={href("moderation", report.id)} aria-label={`Look at report ${report.id}`}>Look</a>,
          ],
        }))}
      />
    </Card>
  );
}

function Person({ id }: { readonly id: string | null | undefined }) {
  if (id === null || id === undefined) return <>the app</>;
  return <a class="link" href={href("users", id)}><bdi>{id}</bdi></a>;
}

function Body({ of: message }: { readonly of: Entry | null | undefined }) {
  if (!message) return <span class="soft">removed</span>;
  return message.recalled ? <Badge tone="bad">recalled</Badge> : <Foreign>{bodyText(message.body)}</Foreign>;
}

function One({ id }: { readonly id: string }) {
  const asked = useAsk(() => ask<ReportDetails>(path`/v1/reports/${id}`), [id]);
  return (
    <>
      <p><a class="link" href={href("moderation")}>All reports</a></p>
      <Loaded asked={asked}>
        {({ report, context }) => (
          <>
            <Card title={`Report ${report.id}`} note={<Badge tone={report.state === "open" ? "warn" : "good"}>{words(report.state)}</Badge>} actions={<Reload asked={asked} />}>
              <Facts
                facts={[
                  ["Reason", words(report.reason)], ["In the reporter's words", report.text ? <Foreign>{report.text}</Foreign> : "–"],
                  ["Reported by", <Person id={report.reporter} />], ["Reported", <Time at={report.at} />],
                  ["Message of", <Person id={report.reported} />],
                  ["Last change", report.changed_at ? <><Time at={report.changed_at} /> by <Foreign>{report.by ?? ""}</Foreign></> : "never"],
                  ["Why", report.note ? <Foreign>{report.note}</Foreign> : "–"],
                ]}
              />
            </Card>
            <Context report={report} context={context} />
            <Decide report={report} asked={asked} />
          </>
        )}
      </Loaded>
    </>
  );
}

function Context({ report, context }: { readonly report: Report; readonly context: readonly Entry[] }) {
  return (
    <Card title="What was written" note={<>in <bdi>{report.conversation}</bdi></>}>
      <ol class="entries">
        {context.map((entry) => (
          <li key={entry.seq} class="entry" {...(entry.seq === report.seq && { "aria-current": true as const })}>
            <span class="entry-seq">{entry.seq}</span>
            <div>
              <div class="entry-head"><Person id={entry.from} /> <time class="soft" dateTime={new Date(entry.at).toISOString()}>{dateTime(entry.at)}</time></div>
              <div class="entry-body"><Body of={entry} /></div>
            </div>
          </li>
        ))}
      </ol>
    </Card>
  );
}

function Decide({ report, asked }: { readonly report: Report; readonly asked: Asked<ReportDetails> }) {
  const [note, setNote] = useState("");
  const [outcome, setOutcome] = useState<string>();
  const { isRunning, failure, run } = useAction();
  const isOff = isRunning || !may("moderation");
  const set = async (state: ReportState): Promise<void> => {
    setOutcome(undefined);
    const body = { state, if_state: report.state, ...(note.trim() !== "" && { note: note.trim() }) };
    if (await run(() => change(`Report ${report.id}: ${words(state)}`, { method: "PATCH", path: path`/v1/reports/${report.id}`, body }))) {
      setOutcome(`The report is ${words(state)}.`);
      setNote("");
    }
    asked.reload();
  };
  const suspend = async (user: string): Promise<void> => {
    const isSure = await confirmed({ title: `Suspend ${user}?`, text: `All sessions of ${user} end, and ${user} is let in nowhere until the suspension is lifted. Nothing of ${user} is lost. ${user} is told why: ${note.trim() || "nothing"}.`, action: "Suspend", isDangerous: true });
    if (isSure && (await run(() => change(`Suspend ${user}`, { method: "POST", path: path`/v1/users/${user}/suspend`, body: note.trim() === "" ? {} : { reason: note.trim() } })))) setOutcome(`${user} is suspended.`);
  };
  const recall = async (): Promise<void> => {
    const isSure = await confirmed({ title: "Recall this message?", text: "Its body is removed for good, for everybody. This cannot be undone.", action: "Recall", isDangerous: true });
    if (isSure && (await run(() => change(`Recall message ${report.seq} of ${report.conversation}`, { method: "DELETE", path: path`/v1/conversations/${report.conversation}/messages/${String(report.seq)}` })))) asked.reload();
  };
  const { reported } = report;
  return (
    <Card title="Decide">
      <div class="stack">
        <Failure text={failure} />
        <Outcome text={outcome} />
        <div class="fields is-wide"><TextField label="Why" value={note} onInput={setNote} /></div>
        <div class="row">
          {report.state === "open" && <button type="button" class="plain" disabled={isOff} onClick={() => void set("in_review")}>Take into review</button>}
          {report.state !== "resolved" && <button type="button" class="primary" disabled={isOff} onClick={() => void set("resolved")}>Resolve</button>}
          {report.state !== "dismissed" && <button type="button" class="plain" disabled={isOff} onClick={() => void set("dismissed")}>Dismiss</button>}
          {(report.state === "resolved" || report.state === "dismissed") && <button type="button" class="plain" disabled={isOff} onClick={() => void set("open")}>Open again</button>}
          {report.message && !report.message.recalled && <button type="button" class="danger" disabled={isOff} onClick={() => void recall()}>Recall the message…</button>}
          {reported !== null && reported !== undefined && <button type="button" class="danger" disabled={isOff} onClick={() => void suspend(reported)}>Suspend <bdi>{reported}</bdi>…</button>}
        </div>
      </div>
    </Card>
  );
}
