// Why each popup of a placement is or is not chosen for a user. Nothing is counted.
import { useState } from "preact/hooks";
import { AreaField, readJson, TextField } from "../parts/form.js";
import { Badge, Card, Failure, Finding, Foreign, Page, Table, Time, type Tone } from "../parts/layout.js";
import { ask } from "../state/api.js";
import { href, type Route } from "../state/route.js";
import type { Explanation } from "../state/types.js";
import { useAction } from "../state/use-ask.js";

const OUTCOMES: Readonly<Record<Explanation["popups"][number]["outcome"], readonly [string, Tone]>> = {
  chosen: ["would be shown", "good"], outranked: ["outranked", "accent"], not_yet: ["not yet", "warn"], no: ["no", "plain"], control: ["in the control group", "plain"],
};

export function ExplainPage({ route }: { readonly route: Route }) {
  const [user, setUser] = useState(route.query.get("user") ?? "");
  const [placement, setPlacement] = useState(route.query.get("placement") ?? "");
  const [session, setSession] = useState("");
  const [attributes, setAttributes] = useState("");
  const [event, setEvent] = useState("");
  const [found, setFound] = useState<Explanation>();
  const { isRunning, failure, run } = useAction();
  const [read, readEvent] = [readJson(attributes), readJson(event)];

  const explain = (): void => {
    if (read.mistake !== undefined || readEvent.mistake !== undefined) return;
    const question = {
      user: user.trim(), placement: placement.trim(),
      ...(session !== "" && { session }), ...(read.value !== undefined && { attributes: read.value }), ...(readEvent.value !== undefined && { event: readEvent.value }),
    };
    void run(async () => setFound(await ask<Explanation>("/v1/popups/explain", question)));
  };

  return (
    <Page title="Explain for a user" about="The same question as an app asks. The answer says of each popup of the placement why it would be shown, or why not." actions={<a class="plain" href={href("popups")}>All popups</a>}>
      <Card title="Question">
        <form class="stack" noValidate onSubmit={(submitted) => { submitted.preventDefault(); explain(); }}>
          <div class="fields">
            <TextField label="User" value={user} onInput={setUser} isRequired />
            <TextField label="Placement" value={placement} placeholder="home" onInput={setPlacement} isRequired />
            <TextField label="Session" help="The app's word for the visit, for caps per session." value={session} onInput={setSession} />
          </div>
          <div class="columns">
            <AreaField label="Attributes" help="What rules look at, as JSON." isCode rows={3} value={attributes} placeholder={'{"country": "DE"}'} error={read.mistake} onInput={setAttributes} />
            <AreaField label="Event" help="For popups with a trigger, as JSON." isCode rows={3} value={event} placeholder={'{"name": "paid", "properties": {}}'} error={readEvent.mistake} onInput={setEvent} />
          </div>
          <Failure text={failure} />
          <div class="row"><button type="submit" class="primary" disabled={isRunning || user.trim() === "" || placement.trim() === ""}>Explain</button></div>
        </form>
      </Card>
      <div role="status">{found && <Answer found={found} />}</div>
    </Page>
  );
}

function Answer({ found: { chosen, next_at: nextAt, popups } }: { readonly found: Explanation }) {
  return (
    <Card title="Answer">
      <div class="stack">
        <ul class="findings">
          {chosen ? <Finding tone="good">The user would be shown <bdi>{chosen}</bdi>.</Finding>
            : nextAt ? <Finding tone="warn">Nothing now. Something could be shown <Time at={nextAt} />.</Finding>
            : <Finding tone="plain">Nothing now, and time alone will not change it.</Finding>}
        </ul>
        <Table
          label="Popups of the placement"
          empty="No popup names this placement: it may be misspelt."
          columns={[{ title: "Popup" }, { title: "Outcome" }, { title: "Why" }, { title: "Part of its configuration" }, { title: "Variant" }, { title: "Not before" }]}
          rows={popups.map(({ popup, version, outcome, field, detail, variant, not_before: notBefore }) => ({
            key: popup,
            cells: [
              <><a class="link" href={href("popups", "one", popup)}><bdi>{popup}</bdi></a> <span class="soft">version {version}</span></>,
              <Badge tone={OUTCOMES[outcome][1]}>{OUTCOMES[outcome][0]}</Badge>, <Foreign>{detail ?? ""}</Foreign>, field ? <code>{field}</code> : "", <bdi>{variant ?? ""}</bdi>, notBefore ? <Time at={notBefore} /> : "",
            ],
          }))}
        />
      </div>
    </Card>
  );
}
