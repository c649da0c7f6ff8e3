import type { Notice } from "@tidings/client";
import { Name } from "../parts/name.js";

// More names are only counted.
const NAMES_MAX = 3;

const MAY_MENTION_ALL: { readonly [setting: string]: string | undefined } = {
  members: "All members may mention @all",
  admins: "Only the owner and the admins may mention @all",
  nobody: "Nobody may mention @all",
};

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
  const may = MAY_MENTION_ALL[String(body["mention_all"])];
  return (
    <span>
      {typeof name === "string" && <>The conversation is named <q dir="auto">{name}</q>{by}. </>}
      {may !== undefined && <>{may} from now on, set{by ?? " by the app"}. </>}
      {typeof name !== "string" && may === undefined && <>The conversation was changed{by}.</>}
    </span>
  );
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
