import type { Conversation } from "@tidings/client";
import { Name } from "../parts/name.js";
import { useObservable } from "../state/cell.js";

/** Who types, below the history. Its place is always there, so that nothing moves. */
export function TypingLine({ chat }: { readonly chat: Conversation }) {
  const users = useObservable(chat.typingUsers);
  const [first, second] = users;
  return (
    <p class="typing-line" aria-live="off">
      {first !== undefined && (
        <>
          <span class="dots" aria-hidden="true"><i /><i /><i /></span>
          <span>
            {users.length > 2 ? `${users.length} people type…` : second === undefined ? <><Name user={first} /> types…</> : <><Name user={first} /> and <Name user={second} /> type…</>}
          </span>
        </>
      )}
    </p>
  );
}
