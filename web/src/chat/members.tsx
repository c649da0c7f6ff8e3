import type { Conversation } from "@tidings/client";
import { Avatar } from "../parts/avatar.js";
import { Dialog } from "../parts/dialog.js";
import { IconButton } from "../parts/icon.js";
import { useObservable } from "../state/cell.js";
import { useName, useSession } from "../state/context.js";
import { telling } from "../state/toasts.js";
import { useMembers } from "./use-members.js";

export function Members({ chat, mayChange, onClose }: {
  readonly chat: Conversation;
  readonly mayChange: boolean;
  readonly onClose: () => void;
}) {
  const { tidings, people } = useSession();
  const members = useMembers(chat);
  const absent = people.filter(({ id }) => !members.some(({ user }) => user === id));
  const leave = async (): Promise<void> => {
    await chat.leave();
    location.hash = "";
  };
  return (
    <Dialog title="Members" onClose={onClose}>
      <ul class="people-list">
        {members.map(({ user, role }) => (
          <MemberLine
            key={user}
            user={user}
            role={role}
            onRemove={mayChange && user !== tidings.user && role !== "owner" ? () => void telling(chat.removeMembers([user])) : undefined}
          />
        ))}
      </ul>
      {mayChange && absent.length > 0 && (
        <>
          <h3>Add</h3>
          <ul class="people-list">
            {absent.map(({ id, name }) => (
              <li key={id}>
                <Avatar id={id} name={name} />
                <bdi class="person-name">{name}</bdi>
                <IconButton icon="plus" label={`Add ${name}`} onClick={() => void telling(chat.addMembers([id]))} />
              </li>
            ))}
          </ul>
        </>
      )}
      <div class="dialog-buttons">
        <button type="button" class="danger" onClick={() => void telling(leave())}>Leave</button>
      </div>
    </Dialog>
  );
}

function MemberLine({ user, role, onRemove }: { readonly user: string; readonly role: string; readonly onRemove: (() => void) | undefined }) {
  const { tidings } = useSession();
  const name = useName(user);
  const presence = useObservable(tidings.presence.of(user));
  return (
    <li>
      <Avatar id={user} name={name} isOnline={presence?.online ?? false} />
      <span class="person-name"><bdi>{name}</bdi>{user === tidings.user && " (you)"}{presence?.online && <span class="sr-only">, online</span>}</span>
      {role !== "member" && <span class="role">{role}</span>}
      {onRemove && <IconButton icon="close" label={`Remove ${name}`} onClick={onRemove} />}
    </li>
  );
}
