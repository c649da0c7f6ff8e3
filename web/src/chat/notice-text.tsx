import type { Notice } from "@tidings/client";
import { Name } from "../parts/name.js";

// More names are only counted.
const NAMES_MAX = 3;

/** A change of the conversation, in words. */
export function NoticeText({ notice }: { readonly notice: Notice }) {
  const body = (notice.body ?? {}) as { readonly [name: string]: unknown };
  const by = typeof body["by"] === "string" ? <> by <Name user={body["by"]} /></> : null;
  if (notice.kind === "member_change") {
    const added = usersOf(body["added"]);
    const removed = usersOf(body["removed"]);
    const hasLeft = removed.length === 1 && removed[0] === body["by"];
    return (
      <span>
        {added.length > 0 && <><Users users={added} total={body["added_count"]} /> joined{by && <>, added{by}</>}. </>}
        {hasLeft && <><Users users={removed} total={1} /> left. </>}
        {removed.length > 0 && !hasLeft && <><Users users={removed} total={body["removed_count"]} /> removed{by}. </>}
        {added.length + removed.length === 0 && <>Members changed{by}.</>}
      </span>
    );
  }
  const name = body["name"];
  return <span>{typeof name === "string" ? <>The conversation is named <q dir="auto">{name}</q>{by}.</> : <>The conversation was changed{by}.</>}</span>;
}

function usersOf(value: unknown): readonly string[] {
  return Array.isArray(value) ? value.filter((user): user is string => typeof user === "string") : [];
}

function Users({ users, total }: { readonly users: readonly string[]; readonly total: unknown }) {
  const named = users.slice(0, NAMES_MAX);
  const more = Math.max(users.length, Number(total) || 0) - named.length;
  return (
    <>
      {named.map((user, index) => <span key={user}>{index > 0 && ", "}<Name user={user} /></span>)}
      {more > 0 && ` and ${more} more`}
    </>
  );
}
