// What this user can set for a conversation: a menu, and the two of its entries that ask first.
import type { Conversation, ConversationView, Preferences } from "@tidings/client";
import { useState } from "preact/hooks";
import { opened } from "../address.js";
import { Dialog } from "../parts/dialog.js";
import type { IconName } from "../parts/icon.js";
import { Menu, type MenuItem } from "../parts/menu.js";
import { tell, telling } from "../state/toasts.js";

const HOURS_8 = 8 * 3_600_000;
const TITLE_CHARACTERS_MAX = 80;

export function ConversationMenu({ chat, view, title, near, more = [], onClose }: {
  readonly chat: Conversation;
  readonly view: ConversationView;
  readonly title: string;
  readonly near: DOMRect;
  /** Entries of the place where the menu opens, above the others. */
  readonly more?: readonly MenuItem[];
  readonly onClose: () => void;
}) {
  const [asking, setAsking] = useState<"title" | "clear">();
  if (asking === "title") return <TitleDialog chat={chat} title={view.title ?? ""} onClose={onClose} />;
  if (asking === "clear") return <ClearDialog chat={chat} title={title} lastSeq={view.last_seq} onClose={onClose} />;

  const entry = (icon: IconName, label: string, work: () => Promise<unknown>): MenuItem => ({
    icon,
    label,
    onPick: () => {
      onClose();
      void telling(work());
    },
  });
  const set = (preferences: Preferences): Promise<void> => chat.setPreferences(preferences);
  /** The conversation goes out of sight: what became of it is said. */
  const putAway = async (preferences: Preferences, said: string): Promise<void> => {
    await set(preferences);
    if (opened() === chat.id) location.hash = "";
    tell(said);
  };
  const isQuiet = view.unread === 0 && view.marked_unread !== true;
  const items: readonly MenuItem[] = [
    ...more.map((item) => ({ ...item, onPick: () => (onClose(), item.onPick()) })),
    view.pinned_at === undefined
      ? entry("pin", "Pin to the top", () => set({ pinned: true }))
      : entry("pin", "Unpin from the top", () => set({ pinned: false })),
    isQuiet
      ? entry("unread", "Mark as unread", () => putAway({ marked_unread: true }, "Marked as unread."))
      : entry("check", "Mark as read", () => Promise.all([chat.markRead(), set({ marked_unread: false })])),
    ...(view.muted
      ? [entry("bell", "Unmute", () => chat.unmute())]
      : [entry("bellOff", "Mute", () => chat.mute()), entry("clock", "Mute for 8 hours", () => chat.mute({ until: Date.now() + HOURS_8 }))]),
    { icon: "edit", label: "Name for me…", onPick: () => setAsking("title") },
    view.archived
      ? entry("unarchive", "Take out of the archive", () => set({ archived: false }))
      : entry("archive", "Archive", () => putAway({ archived: true }, "Archived.")),
    entry("hide", "Hide until the next message", () => putAway({ hidden: true }, "Hidden until the next message.")),
    { icon: "undo", label: "Clear the history…", isDangerous: true, onPick: () => setAsking("clear") },
  ];
  return <Menu near={near} label={`Settings of ${title}`} items={items} onClose={onClose} />;
}

function TitleDialog({ chat, title, onClose }: { readonly chat: Conversation; readonly title: string; readonly onClose: () => void }) {
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget as HTMLFormElement).get("title") ?? "").trim();
    void telling(chat.setPreferences({ title: text === "" ? null : text }));
    onClose();
  };
  return (
    <Dialog title="A name for me alone" onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <label class="field">
          <span>Name</span>
          <input name="title" defaultValue={title} maxLength={TITLE_CHARACTERS_MAX} autoComplete="off" placeholder="The conversation's own" />
        </label>
        <button type="submit" class="primary">Save</button>
      </form>
    </Dialog>
  );
}

function ClearDialog({ chat, title, lastSeq, onClose }: {
  readonly chat: Conversation;
  readonly title: string;
  readonly lastSeq: number;
  readonly onClose: () => void;
}) {
  return (
    <Dialog title="Clear the history?" onClose={onClose}>
      <p class="dialog-text">All messages with <bdi>{title}</bdi> up to now are removed for you, on all your devices. Others keep them. It cannot be taken back.</p>
      <div class="dialog-buttons">
        <button type="button" class="plain" onClick={onClose}>Keep it</button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            void telling(chat.setPreferences({ clear_to_seq: lastSeq }).then(() => tell("Cleared.")));
            onClose();
          }}
        >
          Clear
        </button>
      </div>
    </Dialog>
  );
}
