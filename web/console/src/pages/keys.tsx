// The keys of app servers: what this one may do, all others, and what was changed with which.
import { useState } from "preact/hooks";
import { useObservable } from "../../../src/state/cell.js";
import { confirmed } from "../parts/confirm.js";
import { SelectField, TextField } from "../parts/form.js";
import { Badge, Card, Facts, Failure, Foreign, Loaded, Page, Reload, Table, Time } from "../parts/layout.js";
import { ask, change, path, withQuery } from "../state/api.js";
import { dateTime } from "../state/format.js";
import { may, ownKey } from "../state/own-key.js";
import { KEY_SCOPES, type ApiKey, type AuditEntry, type IssuedApiKey, type KeyScope } from "../state/types.js";
import { useAction, useAsk, type Asked } from "../state/use-ask.js";

const KEYS = "/v1/admin/keys";
const ABOUT: Readonly<Record<KeyScope, string>> = {
  send: "send messages in anybody's name",
  read: "read conversations, messages and presence",
  users: "users, conversations and members",
  push: "pushes, devices and their tokens",
  popups: "popups, segments and journeys",
  moderation: "edit, recall, pin; reports; disconnect, suspend and revoke users",
  admin: "policy, dead letters, settings, API keys",
  erase: "erase users; nothing needs it yet",
};
const OVERLAPS = [["0", "ends at once"], ["3600", "one hour more"], ["86400", "one day more"], ["604800", "seven days more"]] as const;
type Overlap = (typeof OVERLAPS)[number][0];

interface Keys {
  readonly keys: readonly ApiKey[];
}

export function KeysPage() {
  const own = useObservable(ownKey);
  return (
    <Page title="API keys" about="Each caller of your servers gets a key of its own, with the scopes that it needs.">
      {own && <OwnKey own={own} />}
      {may("admin") && <AllKeys />}
    </Page>
  );
}

function OwnKey({ own }: { readonly own: ApiKey }) {
  return (
    <Card title="Your key" note="with which you are signed in">
      <div class="stack">
        <Facts facts={[["Name", own.id === "configured" ? "the key of the settings" : <Foreign>{own.name}</Foreign>], ["Id", own.id], ["Expires", own.expires_at ? <Time at={own.expires_at} /> : "never"]]} />
        <Table
          label="What your key may do"
          columns={[{ title: "Scope" }, { title: "For" }, { title: "Your key" }]}
          rows={KEY_SCOPES.map((scope) => ({ key: scope, cells: [<code>{scope}</code>, ABOUT[scope], own.scopes.includes(scope) ? <Badge tone="good">allowed</Badge> : <Badge>not allowed</Badge>] }))}
        />
      </div>
    </Card>
  );
}

function AllKeys() {
  const asked = useAsk(() => ask<Keys>(KEYS), []);
  const [issued, setIssued] = useState<IssuedApiKey>();
  const show = (next: IssuedApiKey): void => {
    setIssued(next);
    asked.reload();
  };
  return (
    <>
      {issued && <Secret issued={issued} onDone={() => setIssued(undefined)} />}
      <KeyTable asked={asked} onIssued={show} />
      <NewKey onIssued={show} />
      <AuditLog key={asked.data?.keys.length} />
    </>
  );
}

function Secret({ issued: { key, secret }, onDone }: { readonly issued: IssuedApiKey; readonly onDone: () => void }) {
  return (
    <Card title={`The secret of ${key.name}`}>
      <div class="stack">
        <p>Keep it where your server reads its secrets. It is shown this once: the server has only its hash.</p>
        <p><code class="secret">{secret}</code></p>
        <div class="row">
          <button type="button" class="plain" onClick={() => void navigator.clipboard?.writeText(secret)}>Copy</button>
          <button type="button" class="primary" onClick={onDone}>I have kept it</button>
        </div>
      </div>
    </Card>
  );
}

function KeyTable({ asked, onIssued }: { readonly asked: Asked<Keys>; readonly onIssued: (issued: IssuedApiKey) => void }) {
  const { isRunning, failure, run } = useAction();
  const [overlap, setOverlap] = useState<Overlap>("86400");
  const rotate = async ({ id, name }: ApiKey): Promise<void> => {
    const end = OVERLAPS.find(([seconds]) => seconds === overlap)?.[1] ?? "";
    const isSure = await confirmed({ title: `Rotate ${name}?`, text: `${name} gets another secret, which is shown once. The present one: ${end}.`, action: "Rotate" });
    if (isSure) await run(async () => onIssued(await change<IssuedApiKey>(`Rotate the API key ${name}`, { method: "POST", path: path`/v1/admin/keys/${id}/rotate`, body: { overlap_s: Number(overlap) } })));
  };
  const revoke = async ({ id, name }: ApiKey): Promise<void> => {
    const isSure = await confirmed({ title: `Revoke ${name}?`, text: `Requests with ${name} are refused from now on, on all nodes within two seconds. Keys that were made with it stay. This cannot be undone.`, action: "Revoke the key", isDangerous: true });
    if (isSure && (await run(() => change(`Revoke the API key ${name}`, { method: "DELETE", path: path`/v1/admin/keys/${id}` })))) asked.reload();
  };
  // A key changes only those that may do no more than it.
  const isBeyond = ({ scopes }: ApiKey): boolean => !scopes.every(may);
  return (
    <Card title="All keys" note="beside those of the settings" actions={<Reload asked={asked} />}>
      <div class="stack">
        <Failure text={failure} />
        <div class="fields"><SelectField label="After a rotation the former secret" value={overlap} options={OVERLAPS} onInput={setOverlap} /></div>
        <Loaded asked={asked}>
          {({ keys }) => (
            <Table
              label="API keys"
              empty="No key was made yet: your servers call with the key of the settings, which may do everything."
              columns={[{ title: "Name" }, { title: "Scopes" }, { title: "Last used" }, { title: "Expires" }, { title: "Made" }, { title: "" }]}
              rows={keys.map((key) => ({
                key: key.id,
                cells: [
                  <><Foreign>{key.name}</Foreign><p class="setting-about">{key.id}</p></>,
                  <span class="row">{key.scopes.map((scope) => <Badge key={scope} tone={scope === "admin" ? "warn" : "accent"}>{scope}</Badge>)}</span>,
                  key.last_used_at ? <Time at={key.last_used_at} /> : "never",
                  <Expiry of={key} />,
                  <>{key.created_at && <Time at={key.created_at} />}<p class="setting-about">with {key.created_by}</p></>,
                  <span class="row">
                    <button type="button" class="plain small" disabled={isRunning || isBeyond(key)} aria-label={`Rotate ${key.name}`} onClick={() => void rotate(key)}>Rotate…</button>
                    <button type="button" class="danger small" disabled={isRunning || isBeyond(key)} aria-label={`Revoke ${key.name}`} onClick={() => void revoke(key)}>Revoke…</button>
                  </span>,
                ],
              }))}
            />
          )}
        </Loaded>
      </div>
    </Card>
  );
}

function Expiry({ of: { expires_at: at, former_secret_until: until } }: { readonly of: ApiKey }) {
  return (
    <>
      {at === undefined ? "never" : at <= Date.now() ? <Badge tone="bad">expired</Badge> : <Time at={at} />}
      {until !== undefined && <p class="setting-about">former secret until {dateTime(until)}</p>}
    </>
  );
}

function NewKey({ onIssued }: { readonly onIssued: (issued: IssuedApiKey) => void }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<readonly KeyScope[]>([]);
  const [expiry, setExpiry] = useState("");
  const { isRunning, failure, run, setFailure } = useAction();
  const toggle = (scope: KeyScope): void => setScopes(scopes.includes(scope) ? scopes.filter((other) => other !== scope) : [...scopes, scope]);
  const submit = async (): Promise<void> => {
    if (name.trim() === "" || scopes.length === 0) {
      setFailure(name.trim() === "" ? "Say what the key is for." : "Choose what it may do.");
      return;
    }
    const body = { name: name.trim(), scopes, ...(expiry !== "" && { expires_at: new Date(expiry).getTime() }) };
    const isMade = await run(async () => onIssued(await change<IssuedApiKey>(`Make the API key ${body.name}`, { method: "POST", path: KEYS, body })));
    if (!isMade) return;
    setName("");
    setScopes([]);
    setExpiry("");
  };
  return (
    <Card title="Make a key">
      <form class="stack" noValidate onSubmit={(event) => { event.preventDefault(); void submit(); }}>
        <div class="fields">
          <TextField label="Name" help="What it is for, such as the service that calls with it." value={name} onInput={setName} isRequired />
          <TextField label="Expires" help="Empty: never." type="datetime-local" value={expiry} onInput={setExpiry} />
        </div>
        <fieldset class="scopes">
          <legend>Scopes</legend>
          {KEY_SCOPES.map((scope) => (
            <label key={scope} class="scope">
              <input type="checkbox" checked={scopes.includes(scope)} disabled={!may(scope)} onChange={() => toggle(scope)} />
              <span><code>{scope}</code> <span class="soft">{ABOUT[scope]}</span></span>
            </label>
          ))}
        </fieldset>
        <div class="row"><button type="submit" class="primary" disabled={isRunning}>Make the key</button></div>
        <Failure text={failure} />
      </form>
    </Card>
  );
}

interface AuditPage {
  readonly entries: readonly AuditEntry[];
  readonly next?: number;
}

function AuditLog() {
  const [before, setBefore] = useState<number>();
  const asked = useAsk(() => ask<AuditPage>(withQuery("/v1/admin/audit", { before, limit: 50 })), [before]);
  return (
    <Card title="Audit log" note="changes of keys, and what else needs admin" actions={<Reload asked={asked} />}>
      <Loaded asked={asked}>
        {({ entries, next }) => (
          <>
            <Table
              label="Audit log"
              empty="Nothing has been changed yet."
              columns={[{ title: "When" }, { title: "Operation" }, { title: "What" }, { title: "With" }, { title: "By" }]}
              rows={entries.map((entry) => ({
                key: entry.number,
                cells: [
                  <Time at={entry.at} />, <code>{entry.operation}</code>,
                  <>{entry.detail !== undefined && <Foreign>{entry.detail}</Foreign>}{entry.target !== undefined && <p class="setting-about">{entry.target}</p>}</>,
                  <><Foreign>{entry.key_name}</Foreign><p class="setting-about">{entry.key}</p></>,
                  <Foreign>{entry.author ?? "–"}</Foreign>,
                ],
              }))}
            />
            <div class="row">
              {before !== undefined && <button type="button" class="plain" onClick={() => setBefore(undefined)}>Newest</button>}
              {next !== undefined && <button type="button" class="plain" onClick={() => setBefore(next)}>Older</button>}
            </div>
          </>
        )}
      </Loaded>
    </Card>
  );
}

/** Asks the server what this tab's key may do. */
export async function loadOwnKey(): Promise<void> {
  ownKey.set(await ask<ApiKey>(`${KEYS}/me`).catch(() => ownKey.get()));
}
