// One user: who it is, where it is connected, what waits for it, and why a message may not have reached it.
import { useState } from "preact/hooks";
import { confirmed, type Question } from "../parts/confirm.js";
import { Finder, Outcome } from "../parts/form.js";
import { Badge, Card, Facts, Failure, Foreign, Loaded, Page, Reload, Table, Time } from "../parts/layout.js";
import { Narrow, type NarrowField } from "../parts/narrow.js";
import { PagedTable, usePages } from "../parts/paged-table.js";
import { NotificationCheck, words } from "../parts/notification-check.js";
import { ask, askIfThere, change, path, withQuery, type Request } from "../state/api.js";
import { count, dateTime, inline, plural } from "../state/format.js";
import { may } from "../state/own-key.js";
import { go, href, type Route } from "../state/route.js";
import type { ConversationPage, ConversationView, DeviceDetails, PresenceViews, PushToken, SessionView, UserProfile, UserProfiles } from "../state/types.js";
import { useAction, useAsk, type Asked } from "../state/use-ask.js";

export function UsersPage({ route }: { readonly route: Route }) {
  const [, id] = route.parts;
  if (id !== undefined) return <UserPage key={id} id={id} />;
  return (
    <Page title="Users" about="By the id that your own servers gave the user.">
      <Card title="Find a user"><Finder label="A user's id" placeholder="alice" button="Open" onFind={(found) => go("users", found)} /></Card>
      {may("users") && <AllUsers />}
    </Page>
  );
}

const NARROW_USERS: readonly NarrowField[] = [
  { key: "id_prefix", label: "Id begins with" },
  { key: "name_prefix", label: "Name begins with" },
  { key: "attribute", label: "Attribute", placeholder: "tier:gold" },
  { key: "suspended", label: "Suspended", options: [["", "all users"], ["true", "suspended now"], ["false", "not suspended"]] },
];

function AllUsers() {
  const [narrowed, setNarrowed] = useState<Readonly<Record<string, string>>>({});
  const pages = usePages<UserProfiles>(withQuery("/v1/users", narrowed));
  return (
    <Card title="All users" note="in the order of their ids; a page looks at 1,000 of them at most" actions={<Reload asked={pages} />}>
      <Narrow fields={NARROW_USERS} onApply={setNarrowed} />
      <PagedTable
        pages={pages}
        label="All users"
        empty="No user on this page."
        columns={[{ title: "Id" }, { title: "Name" }, { title: "Attributes" }, { title: "Created" }, { title: "" }]}
        rows={({ users }) => users.map((user) => ({
          key: user.id,
          cells: [
            <a class="link" href={href("users", user.id)}><bdi>{user.id}</bdi></a>,
            user.name ? <Foreign>{user.name}</Foreign> : "–",
            user.attributes ? <code>{inline(user.attributes)}</code> : "–",
            <Time at={user.created_at} />,
            user.suspension ? <Badge tone="bad">suspended</Badge> : "",
          ],
        }))}
      />
    </Card>
  );
}

function UserPage({ id }: { readonly id: string }) {
  const user = useAsk(() => askIfThere<UserProfile>(path`/v1/users/${id}`).then((found) => ({ found })), [id]);
  const presence = useAsk(() => ask<PresenceViews>(withQuery("/v1/admin/presence", { user: id })), [id]);
  const devices = useAsk(() => askIfThere<{ readonly devices: readonly DeviceDetails[] }>(path`/v1/users/${id}/devices`).then((answer) => answer?.devices ?? []), [id]);
  const found = user.data?.found;
  return (
    <Page
      title={<Foreign>{found?.name ?? id}</Foreign>}
      about={<bdi>{id}</bdi>}
      actions={<Finder label="A user's id" placeholder="Another user" button="Open" onFind={(other) => go("users", other)} />}
    >
      <Failure text={user.failure} />
      {user.data && !found && <p class="nothing">There is no user with this id. Ids are exact: upper and lower case differ.</p>}
      {found && (
        <>
          <UserProfileView user={found} presence={presence} onSuspended={user.reload} />
          <NotificationCheck user={id} />
          <div class="columns">
            <Sessions user={id} presence={presence} />
            <Devices user={id} devices={devices} />
          </div>
          <PushTokens user={id} />
          <Conversations user={id} />
        </>
      )}
    </Page>
  );
}

/** Asks, changes, says what came of it, and loads again what it has changed. */
function useConfirmedChange(): {
  readonly failure: string | undefined;
  readonly outcome: string | undefined;
  readonly start: <T>(question: Question, request: Request, what: string, told: (answer: T) => string, asked?: Asked<unknown>) => Promise<void>;
} {
  const { failure, run } = useAction();
  const [outcome, setOutcome] = useState<string>();
  return {
    failure,
    outcome,
    start: async <T,>(question: Question, request: Request, what: string, told: (answer: T) => string, asked?: Asked<unknown>) => {
      setOutcome(undefined);
      if (!(await confirmed(question))) return;
      await run(async () => setOutcome(told(await change<T>(what, request))));
      asked?.reload();
    },
  };
}

function UserProfileView({ user, presence, onSuspended }: { readonly user: UserProfile; readonly presence: Asked<PresenceViews>; readonly onSuspended: () => void }) {
  const { failure, outcome, start } = useConfirmedChange();
  const { id, attributes, do_not_disturb: quiet } = user;
  const closed = ({ sessions }: { readonly sessions: number }): string => `Closed: ${plural(sessions, "session")}.`;
  const kick = (): Promise<void> =>
    start(
      { title: `Disconnect ${id}?`, text: `All open sessions of ${id} are closed. The user's apps may connect again at once: their tokens stay good.`, action: "Disconnect" },
      { method: "POST", path: path`/v1/users/${id}/kick`, body: { reason: "by an operator" } }, `Disconnect ${id}`, closed, presence,
    );
  const revoke = (): Promise<void> =>
    start(
      { title: `Revoke the tokens of ${id}?`, text: `Every token of ${id} that was issued until now is refused from now on, and all open sessions are closed. The user signs in again with your own service.`, action: "Revoke all tokens", isDangerous: true },
      { method: "POST", path: path`/v1/users/${id}/revoke`, body: { reason: "by an operator" } }, `Revoke the tokens of ${id}`, closed, presence,
    );
  const suspend = (): Promise<void> =>
    start(
      { title: `Suspend ${id}?`, text: `All sessions of ${id} end, and ${id} is let in nowhere until the suspension is lifted. Nothing of ${id} is lost.`, action: "Suspend", isDangerous: true },
      { method: "POST", path: path`/v1/users/${id}/suspend`, body: { reason: "by an operator" } }, `Suspend ${id}`, () => (onSuspended(), `${id} is suspended.`), presence,
    );
  const unsuspend = (): Promise<void> =>
    start(
      { title: `Lift the suspension of ${id}?`, text: `${id} may connect again, with tokens that were not revoked.`, action: "Lift" },
      { method: "POST", path: path`/v1/users/${id}/unsuspend`, body: {} }, `Lift the suspension of ${id}`, () => (onSuspended(), `${id} is not suspended.`), presence,
    );
  const isOnline = (presence.data?.stored.length ?? 0) > 0;
  return (
    <Card
      title="User"
      note={presence.data && (isOnline ? <Badge tone="good">online</Badge> : <Badge>offline</Badge>)}
      actions={
        <>
          <button type="button" class="plain" disabled={!may("moderation")} onClick={() => void kick()}>Disconnect…</button>
          <button type="button" class="danger" disabled={!may("moderation")} onClick={() => void revoke()}>Revoke tokens…</button>
          {user.suspension ? <button type="button" class="plain" disabled={!may("moderation")} onClick={() => void unsuspend()}>Lift the suspension…</button> : <button type="button" class="danger" disabled={!may("moderation")} onClick={() => void suspend()}>Suspend…</button>}
        </>
      }
    >
      <div class="stack">
        <Failure text={failure} />
        <Outcome text={outcome} />
        <Facts
          facts={[
            ["Name", user.name ? <Foreign>{user.name}</Foreign> : "–"], ["Created", <Time at={user.created_at} />],
            ["Last seen", isOnline ? "now" : presence.data?.last_seen ? <Time at={presence.data.last_seen} /> : "never"],
            ...(user.suspension ? [["Suspended", `${user.suspension.until ? `until ${dateTime(user.suspension.until)}` : "until that is lifted"}, by ${user.suspension.by}: ${user.suspension.reason}`] as const] : []),
            ["Do not disturb", quiet ? `${quiet.start} to ${quiet.end}, ${quiet.time_zone}` : "not set"],
            ...(user.avatar ? [["Picture", <Foreign>{user.avatar}</Foreign>] as const] : []),
            ...(attributes && Object.keys(attributes).length > 0 ? [["Attributes", <code>{inline(attributes)}</code>] as const] : []),
          ]}
        />
      </div>
    </Card>
  );
}

function Sessions({ presence, user }: { readonly presence: Asked<PresenceViews>; readonly user: string }) {
  const { failure, outcome, start } = useConfirmedChange();
  const end = (session: SessionView): Promise<void> =>
    start(
      { title: "Disconnect this device?", text: `The session of ${user} on the device ${session.device_id} (${session.device_kind}) is closed. Its app may connect again at once.`, action: "Disconnect" },
      { method: "POST", path: path`/v1/users/${user}/kick`, body: { device_id: session.device_id, reason: "by an operator" } },
      `Disconnect the device ${session.device_id} of ${user}`, () => "The session is closed.", presence,
    );
  return (
    <Card title="Sessions" note="as registered, and as the nodes hold them" actions={<Reload asked={presence} />}>
      <Failure text={failure} />
      <Outcome text={outcome} />
      <Loaded asked={presence}>
        {({ stored, memory }) => {
          const all = new Map([...memory, ...stored].map((session) => [session.session, session]));
          const has = (sessions: readonly SessionView[], name: string): boolean => sessions.some(({ session }) => session === name);
          return (
            <Table
              label="Sessions"
              empty="No session is open."
              columns={[{ title: "Device" }, { title: "Kind" }, { title: "Node" }, { title: "Since" }, { title: "Agrees" }, { title: "" }]}
              rows={[...all.values()].map((session) => ({
                key: session.session,
                cells: [
                  <Foreign>{session.device_id}</Foreign>, session.device_kind, <bdi>{session.node}</bdi>, <Time at={session.since} />,
                  has(stored, session.session) && has(memory, session.session) ? <Badge tone="good">yes</Badge> : <Badge tone="bad">{has(memory, session.session) ? "not registered" : "no connection"}</Badge>,
                  <button type="button" class="plain small" disabled={!may("moderation")} onClick={() => void end(session)}>Disconnect…</button>,
                ],
              }))}
            />
          );
        }}
      </Loaded>
    </Card>
  );
}

function Devices({ user, devices }: { readonly user: string; readonly devices: Asked<readonly DeviceDetails[]> }) {
  const { failure, outcome, start } = useConfirmedChange();
  const forget = ({ device_id: device, pending }: DeviceDetails): Promise<void> =>
    start(
      { title: "Forget this device?", text: `The device ${device} of ${user} gets no push any more, and what waits for it (${plural(pending, "push", "pushes")}) is dropped. When its app binds again the device is a new one.`, action: "Forget the device", isDangerous: true },
      { method: "DELETE", path: path`/v1/users/${user}/devices/${device}` }, `Forget the device ${device} of ${user}`, () => "The device is forgotten.", devices,
    );
  return (
    <Card title="Devices" note="that pushes can be sent to" actions={<Reload asked={devices} />}>
      <Failure text={failure} />
      <Outcome text={outcome} />
      <Loaded asked={devices}>
        {(all) => (
          <Table
            label="Devices"
            empty="No device has bound for pushes."
            columns={[{ title: "Device" }, { title: "Kind" }, { title: "Tags" }, { title: "Waiting", isNumber: true }, { title: "Last bound" }, { title: "" }]}
            rows={all.map((device) => ({
              key: device.device_id,
              cells: [
                <><Foreign>{device.device_id}</Foreign> {device.online && <Badge tone="good">online</Badge>}</>,
                `${device.device_kind}${device.app_version ? ` ${device.app_version}` : ""}`,
                <Foreign>{device.tags.join(", ")}</Foreign>, count(device.pending), <Time at={device.last_bound} />,
                <button type="button" class="plain small" onClick={() => void forget(device)}>Forget…</button>,
              ],
            }))}
          />
        )}
      </Loaded>
    </Card>
  );
}

function PushTokens({ user }: { readonly user: string }) {
  const tokens = useAsk(() => ask<{ readonly push_tokens: readonly PushToken[] }>(path`/v1/users/${user}/push_tokens`), [user]);
  const { failure, outcome, start } = useConfirmedChange();
  const remove = ({ device_id: device, provider }: PushToken): Promise<void> =>
    start(
      { title: "Remove this push token?", text: `${words(provider)} no longer notifies the device ${device} of ${user}, until its app registers again.`, action: "Remove the token", isDangerous: true },
      { method: "DELETE", path: path`/v1/users/${user}/devices/${device}/push_token` }, `Remove the push token of the device ${device} of ${user}`, () => "The token is removed.", tokens,
    );
  return (
    <Card title="Push tokens" note="devices that a provider notifies" actions={<Reload asked={tokens} />}>
      <Failure text={failure} />
      <Outcome text={outcome} />
      <Loaded asked={tokens}>
        {({ push_tokens: all }) => (
          <Table
            label="Push tokens"
            empty="No app of this user has registered with a provider."
            columns={[{ title: "Device" }, { title: "Provider" }, { title: "Registered" }, { title: "" }]}
            rows={all.map((one) => ({
              key: one.device_id,
              cells: [<Foreign>{one.device_id}</Foreign>, words(one.provider), <Time at={one.registered_at} />, <button type="button" class="plain small" onClick={() => void remove(one)}>Remove…</button>],
            }))}
          />
        )}
      </Loaded>
    </Card>
  );
}

function Conversations({ user }: { readonly user: string }) {
  const page = usePages<ConversationPage>(path`/v1/users/${user}/conversations`);
  return (
    <Card title="Conversations" note="as the user's list has them" actions={<Reload asked={page} />}>
      <PagedTable
        pages={page}
        label="Conversations"
        empty="The user is in no conversation."
        columns={[{ title: "Conversation" }, { title: "Kind" }, { title: "Unread", isNumber: true }, { title: "Read to", isNumber: true }, { title: "Set by the user" }, { title: "Last entry" }]}
        rows={({ conversations }) => conversations.map((conversation) => ({ key: conversation.id, cells: cellsOf(conversation) }))}
      />
    </Card>
  );
}

function cellsOf({ id, kind, name, role, unread, unread_capped: capped, mentions, read_seq: read, last_seq: last, last_at: lastAt, muted, muted_until: until, archived, hidden }: ConversationView) {
  return [
    <><a class="link" href={href("conversations", id)}><Foreign>{name ?? id}</Foreign></a>{name && <> <span class="soft"><bdi>{id}</bdi></span></>}</>,
    `${kind}, ${role}`,
    <>{unread > 0 ? <Badge tone="accent">{count(unread)}{capped === true && "+"}</Badge> : "0"}{mentions > 0 && ` (${plural(mentions, "mention")})`}</>,
    `${count(read)} of ${count(last)}`,
    <span class="row">
      {muted && <Badge tone="warn">muted{until ? ` until ${dateTime(until)}` : ""}</Badge>}
      {archived === true && <Badge>archived</Badge>}
      {hidden === true && <Badge>hidden</Badge>}
    </span>,
    last === 0 ? "–" : <Time at={lastAt} />,
  ];
}
