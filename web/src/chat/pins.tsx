import type { Conversation, Entry } from "@tidings/client";
import { useEffect, useState } from "preact/hooks";
import { Dialog } from "../parts/dialog.js";
import { IconButton } from "../parts/icon.js";
import { Name } from "../parts/name.js";
import { reason, telling } from "../state/toasts.js";
import { listTimeText, previewOfEntry } from "../text.js";
import type { MessageActions } from "./actions.js";

export function Pins({ chat, actions, onClose }: {
  readonly chat: Conversation;
  readonly actions: MessageActions;
  readonly onClose: () => void;
}) {
  const [pins, setPins] = useState<readonly Entry[]>();
  const [failure, setFailure] = useState<string>();
  useEffect(() => {
    chat.pins().then(setPins, (error: unknown) => setFailure(reason(error)));
  }, [chat]);
  const unpin = async (seq: number): Promise<void> => {
    await chat.unpin(seq);
    setPins((now) => now?.filter((entry) => entry.seq !== seq));
  };
  return (
    <Dialog title="Pinned messages" onClose={onClose}>
      {failure !== undefined && <p class="failure" role="alert">{failure}</p>}
      {pins?.length === 0 && <p class="empty">Nothing is pinned. A message's pin puts it here for all.</p>}
      <ul class="pins">
        {pins?.map((entry) => (
          <li key={entry.seq}>
            <button
              type="button"
              class="pin"
              onClick={() => {
                onClose();
                actions.jump(entry.seq);
              }}
            >
              <span class="pin-from">{entry.from !== undefined && <Name user={entry.from} />} <time>{listTimeText(entry.at)}</time></span>
              <span class="pin-text" dir="auto">{previewOfEntry(entry)}</span>
            </button>
            {actions.mayPin && <IconButton icon="close" label="Unpin" onClick={() => void telling(unpin(entry.seq))} />}
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
