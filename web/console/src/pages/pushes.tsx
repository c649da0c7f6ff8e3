// Data to devices: composed, estimated, sent and followed.
import { useEffect, useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { AreaField, Finder, Outcome, readJson, SelectField, TextField, words } from "../parts/form.js";
import { Badge, Card, Facts, Failure, Loaded, Page, Reload, Time, type Tone } from "../parts/layout.js";
import { Narrow, type NarrowField } from "../parts/narrow.js";
import { PagedTable, usePages } from "../parts/paged-table.js";
import { ask, change, path, reason, RefusedError, withQuery } from "../state/api.js";
import { count, percent, plural } from "../state/format.js";
import { go, href, type Route } from "../state/route.js";
import type { PushDevicePage, PushPage, PushStatus } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";

const FOLLOW_EVERY_MS = 2_000;
const TONES: Readonly<Record<PushStatus["state"], Tone>> = { scheduled: "plain", running: "accent", completed: "good", expired: "warn", cancelled: "bad" };

export function PushesPage({ route }: { readonly route: Route }) {
  const [, id] = route.parts;
  if (id !== undefined) return <PushPage id={id} />;
  return (
    <Page title="Pushes" about="Data to devices over their own connection, kept for each until it has acknowledged or the time is over.">
      <Composer />
      <PushList />
    </Page>
  );
}

const NARROW_PUSHES: readonly NarrowField[] = [
  { key: "state", label: "State", options: [["", "all states"], ...Object.keys(TONES).map((state) => [state, state] as const)] },
  { key: "type", label: "Type" },
];

function PushList() {
  const [narrowed, setNarrowed] = useState<Readonly<Record<string, string>>>({});
  const page = usePages<PushPage>(withQuery("/v1/push", narrowed));
  return (
    <Card
      title="All pushes"
      note="newest first; those of journeys and of the channel device_push, too"
      actions={<><Finder label="A push's number" button="Follow" onFind={(push) => go("pushes", push)} /><Reload asked={page} /></>}
    >
      <Narrow fields={NARROW_PUSHES} onApply={setNarrowed} />
      <PagedTable
        pages={page}
        label="Pushes"
        empty="No push on this page: none was sent, none is kept any longer, or none fits."
        columns={[{ title: "Push" }, { title: "State" }, { title: "Type" }, { title: "Devices", isNumber: true }, { title: "Accepted" }, { title: "Ended" }]}
        rows={({ pushes }) => pushes.map(({ push, state, type, client_push_id: own, targets, accepted_at: at, send_at: start, ended_at: ended }) => ({
          key: push,
          cells: [
            <><a class="link" href={href("pushes", push)}>{push}</a>{own && <> <span class="soft"><bdi>{own}</bdi></span></>}</>,
            <Badge tone={TONES[state]}>{state}</Badge>, <bdi>{type || "–"}</bdi>, state === "scheduled" ? "–" : count(targets),
            <Time at={at} />, ended ? <Time at={ended} /> : state === "scheduled" && start ? <>starts <Time at={start} /></> : "–",
          ],
        }))}
      />
    </Card>
  );
}

type Audience = "users" | "tags" | "all";

interface Draft {
  readonly audience: Audience;
  readonly users: string;
  readonly anyTags: string;
  readonly allTags: string;
  readonly kinds: string;
  readonly type: string;
  readonly body: string;
  readonly ttl: string;
  readonly collapseKey: string;
  readonly priority: "normal" | "high";
  readonly sendAt: string;
}

const EMPTY: Draft = { audience: "users", users: "", anyTags: "", allTags: "", kinds: "", type: "", body: '{\n  "text": ""\n}', ttl: "", collapseKey: "", priority: "normal", sendAt: "" };

function targetOf({ audience, users, anyTags, allTags, kinds }: Draft): Record<string, unknown> {
  const narrowed = words(kinds).length > 0 ? { kinds: words(kinds) } : {};
  if (audience === "all") return { all: true, ...narrowed };
  if (audience === "users") return { users: words(users), ...narrowed };
  return { tags: { any: words(anyTags), all: words(allTags) }, ...narrowed };
}

function requestOf(draft: Draft, body: unknown): Record<string, unknown> {
  return {
    to: targetOf(draft),
    body,
    priority: draft.priority,
    ...(draft.type !== "" && { type: draft.type }),
    ...(draft.ttl !== "" && { ttl_s: Number(draft.ttl) }),
    ...(draft.collapseKey !== "" && { collapse_key: draft.collapseKey }),
    ...(draft.sendAt !== "" && { send_at: new Date(draft.sendAt).getTime() }),
  };
}

/** Which field a refusal is about, by the path that its detail begins with. */
function fieldOf(detail: string): keyof Draft | undefined {
  const fields: readonly (readonly [string, keyof Draft])[] = [
    ["to.users", "users"], ["to.tags", "anyTags"], ["to.kinds", "kinds"], ["to", "audience"], ["type", "type"], ["body", "body"],
    ["ttl_s", "ttl"], ["collapse_key", "collapseKey"], ["priority", "priority"], ["send_at", "sendAt"],
  ];
  const where = detail.split(":")[0] ?? "";
  return fields.find(([begin]) => where.startsWith(begin))?.[1];
}

/** `crypto.randomUUID` is not there on a page that came without TLS. */
function newPushId(): string {
  return `console-${[...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

interface Reach {
  readonly devices: number;
  readonly online: number;
}

function Composer() {
  const [draft, setDraft] = useState(EMPTY);
  const [pushId, setPushId] = useState(newPushId);
  const [reach, setReach] = useState<Reach>();
  const [mistakes, setMistakes] = useState<Partial<Record<keyof Draft, string>>>({});
  const { isRunning, failure, run, setFailure } = useAction();
  const set = (part: Partial<Draft>): void => {
    setDraft({ ...draft, ...part });
    setPushId(newPushId());
    setReach(undefined);
  };

  const body = readJson(draft.body);
  const check = (): Record<string, unknown> | undefined => {
    const found: Partial<Record<keyof Draft, string>> = {};
    if (body.mistake !== undefined) found.body = body.mistake;
    else if (body.value === undefined) found.body = "A push needs a body: any JSON of at most 4 KiB.";
    if (draft.audience === "users" && words(draft.users).length === 0) found.users = "Name at least one user.";
    if (draft.audience === "tags" && words(draft.anyTags + draft.allTags).length === 0) found.anyTags = "Name at least one tag.";
    if (draft.ttl !== "" && !/^\d+$/u.test(draft.ttl)) found.ttl = "A whole number of seconds.";
    setMistakes(found);
    return Object.keys(found).length === 0 && body.mistake === undefined ? requestOf(draft, body.value) : undefined;
  };
  const showing = async (work: () => Promise<void>): Promise<void> => {
    setFailure(undefined);
    await run(async () => {
      try {
        await work();
      } catch (error) {
        const field = error instanceof RefusedError ? fieldOf(error.message) : undefined;
        if (field === undefined) throw error;
        setMistakes({ [field]: reason(error) });
      }
    });
  };
  const estimateOf = async (request: Record<string, unknown>): Promise<Reach> =>
    (await ask<{ readonly reach: Reach }>("/v1/push", { ...request, dry_run: true })).reach;

  const estimate = (): void => {
    const request = check();
    if (request) void showing(async () => setReach(await estimateOf(request)));
  };
  const send = (): void => {
    const request = check();
    if (!request) return;
    void showing(async () => {
      const expected = await estimateOf(request);
      setReach(expected);
      const when = draft.sendAt === "" ? "now" : `at ${new Date(draft.sendAt).toLocaleString()}`;
      const whom = draft.audience === "all" ? "every device that ever bound" : draft.audience === "tags" ? "all devices with these tags" : `the devices of ${plural(words(draft.users).length, "user")}`;
      const isSure = await confirmed({
        title: `Push to ${plural(expected.devices, "device")}?`,
        text: `The push goes to ${whom} ${when}: ${plural(expected.devices, "device")}, ${count(expected.online)} of them connected. What a device has been handed cannot be taken back.`,
        action: "Send the push",
        isDangerous: draft.audience !== "users",
      });
      if (!isSure) return;
      // The same push again, should its answer get lost, sends nothing twice.
      const made = { ...request, client_push_id: pushId };
      const { push } = await change<{ readonly push: number }>(`Push to ${plural(expected.devices, "device")}`, { method: "POST", path: "/v1/push", body: made });
      set(EMPTY);
      go("pushes", push);
    });
  };

  return (
    <Card title="New push">
      <form class="stack" noValidate onSubmit={(event) => { event.preventDefault(); send(); }}>
        <div class="fields">
          <SelectField label="To" value={draft.audience} error={mistakes.audience} onInput={(audience) => set({ audience })} options={[["users", "Users by id"], ["tags", "Devices by tags"], ["all", "All devices"]]} />
          <TextField label="Only kinds of devices" value={draft.kinds} error={mistakes.kinds} placeholder="ios, android" onInput={(kinds) => set({ kinds })} />
          <TextField label="Type" help="The app's own word for what the body is." value={draft.type} error={mistakes.type} onInput={(type) => set({ type })} />
        </div>
        {draft.audience === "users" && <AreaField label="Users" help="Ids, with commas or spaces between." rows={2} value={draft.users} error={mistakes.users} onInput={(users) => set({ users })} />}
        {draft.audience === "tags" && (
          <div class="fields">
            <TextField label="With any of these tags" value={draft.anyTags} error={mistakes.anyTags} onInput={(anyTags) => set({ anyTags })} />
            <TextField label="With all of these tags" value={draft.allTags} onInput={(allTags) => set({ allTags })} />
          </div>
        )}
        <AreaField label="Body" help="Any JSON of at most 4 KiB; devices get it unchanged." isCode rows={5} value={draft.body} error={mistakes.body} onInput={(text) => set({ body: text })} />
        <div class="fields">
          <TextField label="Kept for, in seconds" help="For devices that are away. A day by default." type="number" value={draft.ttl} error={mistakes.ttl} onInput={(ttl) => set({ ttl })} />
          <TextField label="Collapse key" help="A newer push with the same key takes this one's place." value={draft.collapseKey} error={mistakes.collapseKey} onInput={(collapseKey) => set({ collapseKey })} />
          <SelectField label="Priority" value={draft.priority} error={mistakes.priority} options={[["normal", "Normal"], ["high", "High"]]} onInput={(priority) => set({ priority })} />
          <TextField label="Send at" help="Empty: at once." type="datetime-local" value={draft.sendAt} error={mistakes.sendAt} onInput={(sendAt) => set({ sendAt })} />
        </div>
        <Failure text={failure} />
        <Outcome text={reach && `This would reach ${plural(reach.devices, "device")}, ${count(reach.online)} of them connected now.`} />
        <div class="row">
          <button type="submit" class="primary" disabled={isRunning}>Send…</button>
          <button type="button" class="plain" disabled={isRunning} onClick={estimate}>Estimate</button>
        </div>
      </form>
    </Card>
  );
}

function PushPage({ id }: { readonly id: string }) {
  const status = useAsk(() => ask<PushStatus>(path`/v1/push/${id}`), [id]);
  const state = status.data?.state;
  const isOver = state !== undefined && state !== "running" && state !== "scheduled";
  useEffect(() => {
    if (isOver) return undefined;
    const timer = setInterval(status.reload, FOLLOW_EVERY_MS);
    return () => clearInterval(timer);
  }, [isOver, status.reload]);
  const { isRunning, failure, run } = useAction();

  const cancel = async (pending: number): Promise<void> => {
    const isSure = await confirmed({
      title: `Cancel push ${id}?`,
      text: `The push is no longer handed to those that have not acknowledged it (${plural(pending, "device")}). Devices that have it keep it.`,
      action: "Cancel the push",
      isDangerous: true,
    });
    if (isSure) await run(() => change(`Cancel push ${id}`, { method: "DELETE", path: path`/v1/push/${id}` }));
    status.reload();
  };

  return (
    <Page title={`Push ${id}`} actions={<a class="plain" href={href("pushes")}>All pushes</a>}>
      <Failure text={failure} />
      <Loaded asked={status}>
        {(push) => (
          <Card
            title="Progress"
            note={<Badge tone={TONES[push.state]}>{push.state}</Badge>}
            actions={!isOver && <button type="button" class="danger" disabled={isRunning} onClick={() => void cancel(push.counts.pending)}>Cancel the push…</button>}
          >
            <Progress push={push} />
          </Card>
        )}
      </Loaded>
      <Devices id={id} />
    </Page>
  );
}

function Progress({ push }: { readonly push: PushStatus }) {
  const { targets, pending, offline, delivered, acknowledged, expired, collapsed, cancelled } = push.counts;
  const share = (part: number): { readonly width: string } => ({ width: `${targets === 0 ? 0 : (100 * part) / targets}%` });
  const handed = Math.max(0, Math.min(delivered, targets) - acknowledged);
  return (
    <div class="stack">
      <div class="bar" role="img" aria-label={`${percent(acknowledged, targets)} acknowledged`}>
        <span class="is-acknowledged" style={share(acknowledged)} />
        <span class="is-delivered" style={share(Math.min(handed, pending))} />
        <span class="is-lost" style={share(expired + cancelled)} />
      </div>
      <Facts
        facts={[
          ["Devices", count(targets)], ["Acknowledged", `${count(acknowledged)} (${percent(acknowledged, targets)})`], ["Written to a connection", count(delivered)],
          ["Waiting", `${count(pending)}, ${count(offline)} of them offline`], ["Expired", count(expired)], ["Replaced by a newer one", count(collapsed)], ["Cancelled", count(cancelled)],
          ...(push.fallback ? [["Notified by providers", sentBy(push.fallback.sent)] as const] : []),
          ["Refused, too many waiting", count(push.refused_full)], ["Unknown users and devices", count(push.unknown)],
          ["Accepted", <Time at={push.accepted_at} />], ["Started", push.started_at ? <Time at={push.started_at} /> : push.send_at ? <>starts <Time at={push.send_at} /></> : "–"],
          [push.ended_at ? "Ended" : "Expires", <Time at={push.ended_at ?? push.expires_at} />],
          ["Type", <bdi>{push.type || "–"}</bdi>], ["Priority", push.priority], ["Collapse key", <bdi>{push.collapse_key ?? "–"}</bdi>],
        ]}
      />
    </div>
  );
}

function sentBy(sent: Readonly<Record<string, number>>): string {
  const providers = Object.entries(sent);
  return providers.length === 0 ? "none yet" : providers.map(([provider, devices]) => `${provider} ${count(devices)}`).join(", ");
}

function Devices({ id }: { readonly id: string }) {
  const page = usePages<PushDevicePage>(path`/v1/push/${id}/devices`);
  return (
    <Card title="Devices" actions={<Reload asked={page} />}>
      <PagedTable
        pages={page}
        label="Devices"
        empty="It is for no device."
        columns={[{ title: "User" }, { title: "Device" }, { title: "State" }, { title: "Written" }, { title: "Ended" }, { title: "Notified by" }]}
        rows={({ devices }) => devices.map(({ user, device_id: device, state, delivered_at: delivered, ended_at: ended, fallback }) => ({
          key: `${user} ${device}`,
          cells: [<a class="link" href={href("users", user)}><bdi>{user}</bdi></a>, <bdi>{device}</bdi>, <Badge tone={state === "acknowledged" ? "good" : "plain"}>{state}</Badge>, delivered ? <Time at={delivered} /> : "–", ended ? <Time at={ended} /> : "–", fallback ?? "–"],
        }))}
      />
    </Card>
  );
}
