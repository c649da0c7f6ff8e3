// One conversation: its card and settings, its members, and its history with what became of each message.
import { useState } from "preact/hooks";
import { EntryRow } from "../parts/entry.js";
import { Finder } from "../parts/form.js";
import { Badge, Card, Facts, Foreign, Loaded, Page, Reload, Time } from "../parts/layout.js";
import { Narrow, type NarrowField } from "../parts/narrow.js";
import { PagedTable, usePages } from "../parts/paged-table.js";
import { ask, path, withQuery } from "../state/api.js";
import { count, inline } from "../state/format.js";
import { may } from "../state/own-key.js";
import { go, href, type Route } from "../state/route.js";
import type { ConversationDetails, ConversationList, HistoryPage, MemberPage } from "../state/types.js";
import { useAsk } from "../state/use-ask.js";
import { ConversationSettings } from "./conversation-settings.js";

const ENTRIES = 50;

export function ConversationsPage({ route }: { readonly route: Route }) {
  const [, id] = route.parts;
  if (id !== undefined) return <ConversationPage key={id} id={id} seq={route.query.get("seq") ?? undefined} />;
  return (
    <Page title="Conversations" about="By its id: the app's own for groups and official accounts; of a direct conversation the two users' ids in order, with a ~ between. A user's page lists that user's.">
      <Card title="Find a conversation"><Finder label="A conversation's id" placeholder="demo, or alice~bob" button="Open" onFind={(found) => go("conversations", found)} /></Card>
      {may("read") && <AllConversations />}
    </Page>
  );
}

const NARROW_CONVERSATIONS: readonly NarrowField[] = [
  { key: "id_prefix", label: "Id begins with" },
  { key: "name_prefix", label: "Name begins with" },
  { key: "member", label: "Has the member" },
  { key: "attribute", label: "Attribute", placeholder: "city:Wien" },
  { key: "kind", label: "Kind", options: [["", "all kinds"], ["direct", "direct"], ["group", "group"], ["official", "official account"]] },
  { key: "importing", label: "Import", options: [["", "whether or not"], ["true", "being imported"], ["false", "not being imported"]] },
];

function AllConversations() {
  const [narrowed, setNarrowed] = useState<Readonly<Record<string, string>>>({});
  const pages = usePages<ConversationList>(withQuery("/v1/conversations", narrowed));
  return (
    <Card title="All conversations" note="in the order of their ids; a page looks at 1,000 of them at most" actions={<Reload asked={pages} />}>
      <Narrow fields={NARROW_CONVERSATIONS} onApply={setNarrowed} />
      <PagedTable
        pages={pages}
        label="All conversations"
        empty="No conversation on this page."
        columns={[{ title: "Id" }, { title: "Name" }, { title: "Kind" }, { title: "Members", isNumber: true }, { title: "Newest entry", isNumber: true }, { title: "Created" }]}
        rows={({ conversations }) => conversations.map((conversation) => ({
          key: conversation.id,
          cells: [
            <a class="link" href={href("conversations", conversation.id)}><bdi>{conversation.id}</bdi></a>,
            conversation.name ? <Foreign>{conversation.name}</Foreign> : "–",
            conversation.kind,
            count(conversation.member_count),
            count(conversation.last_seq),
            <Time at={conversation.created_at} />,
          ],
        }))}
      />
    </Card>
  );
}

function ConversationPage({ id, seq }: { readonly id: string; readonly seq: string | undefined }) {
  const card = useAsk(() => ask<ConversationDetails>(path`/v1/conversations/${id}`), [id]);
  return (
    <Page
      title={<Foreign>{card.data?.name ?? id}</Foreign>}
      about={<bdi>{id}</bdi>}
      actions={<Finder label="A conversation's id" placeholder="Another conversation" button="Open" onFind={(found) => go("conversations", found)} />}
    >
      <Loaded asked={card}>
        {(conversation) => (
          <>
            <Card title="Conversation">
              <Facts
                facts={[
                  ["Kind", conversation.kind], ["Members", count(conversation.member_count)], ["Newest entry", count(conversation.last_seq)], ["Created", <Time at={conversation.created_at} />],
                  ...(conversation.attributes ? [["Attributes", <code>{inline(conversation.attributes)}</code>] as const] : []),
                ]}
              />
            </Card>
            <ConversationSettings card={conversation} onChanged={card.reload} />
            <History id={id} start={seq} />
            <Members id={id} />
          </>
        )}
      </Loaded>
    </Page>
  );
}

/** Where a page of history begins: at the newest entries, behind a cursor, or around a number. */
type Where = { readonly cursor: string } | { readonly to: number } | undefined;

function History({ id, start }: { readonly id: string; readonly start: string | undefined }) {
  const wanted = start === undefined ? undefined : Number(start);
  const [where, setWhere] = useState<Where>(wanted === undefined || Number.isNaN(wanted) ? undefined : { to: wanted + ENTRIES / 2 });
  const query = where === undefined ? {} : "cursor" in where ? { cursor: where.cursor } : { to_seq: where.to };
  const page = useAsk(() => ask<HistoryPage>(withQuery(path`/v1/conversations/${id}/messages`, { ...query, limit: ENTRIES })), [id, JSON.stringify(query)]);
  return (
    <Card
      title="History"
      note={page.data && (page.data.entries.length === 0 ? "no entry" : `entries ${count(page.data.entries[0]?.seq ?? 0)} to ${count(page.data.entries.at(-1)?.seq ?? 0)} of ${count(page.data.last_seq)}, newest first`)}
      actions={<><Finder label="Go to an entry's number" placeholder="Go to number" button="Go" onFind={(text) => Number(text) > 0 && setWhere({ to: Number(text) + ENTRIES / 2 })} /><Reload asked={page} /></>}
    >
      <Loaded asked={page}>
        {({ entries, previous, next }) => (
          <>
            <ol class="entries" aria-label="Entries, newest first">
              {[...entries].reverse().map((entry) => <EntryRow key={entry.seq} entry={entry} isWanted={entry.seq === wanted} onChanged={page.reload} />)}
            </ol>
            <div class="row">
              {next !== undefined && next !== null && <button type="button" class="plain" onClick={() => setWhere({ cursor: next })}>Newer</button>}
              {previous !== undefined && previous !== null && <button type="button" class="plain" onClick={() => setWhere({ cursor: previous })}>Older</button>}
              {where !== undefined && <button type="button" class="plain" onClick={() => setWhere(undefined)}>Newest</button>}
            </div>
          </>
        )}
      </Loaded>
    </Card>
  );
}

function Members({ id }: { readonly id: string }) {
  const page = usePages<MemberPage>(path`/v1/conversations/${id}/members`);
  return (
    <Card title="Members" actions={<Reload asked={page} />}>
      <PagedTable
        pages={page}
        label="Members"
        columns={[{ title: "User" }, { title: "Role" }, { title: "Joined" }]}
        rows={({ members }) => members.map(({ user, role, joined_at: joined }) => ({ key: user, cells: [<a class="link" href={href("users", user)}><bdi>{user}</bdi></a>, role === "member" ? role : <Badge tone="accent">{role}</Badge>, <Time at={joined} />] }))}
      />
    </Card>
  );
}
