// What an operator sets for a conversation: who learns of receipts, what newcomers read, who may mention everybody.
import { useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { Outcome, SelectField, TextField } from "../parts/form.js";
import { Card, Failure } from "../parts/layout.js";
import { change, path } from "../state/api.js";
import { may } from "../state/own-key.js";
import type { ConversationDetails } from "../state/types.js";
import { useAction } from "../state/use-ask.js";

type Receipts = NonNullable<ConversationDetails["receipts"]>;
type MentionAll = NonNullable<ConversationDetails["mention_all"]>;
type Blocks = NonNullable<ConversationDetails["blocks"]>;
type HistoryKind = "all" | "join" | "last";
type Settings = Pick<ConversationDetails, "receipts" | "history" | "mention_all" | "blocks">;

const RECEIPTS: readonly (readonly [Receipts, string])[] = [["members", "Who has a message and who has read it"], ["counts", "How many have it and have read it"], ["none", "Nothing"]];
const HISTORY: readonly (readonly [HistoryKind, string])[] = [["all", "All of it"], ["join", "Nothing"], ["last", "So many entries"]];
const MENTION_ALL: readonly (readonly [MentionAll, string])[] = [["admins", "The owner and the admins"], ["members", "All members who may send"], ["nobody", "Nobody but app servers"]];
const BLOCKS: readonly (readonly [Blocks, string])[] = [["ignore", "As all others"], ["hide", "Not at all"]];

const ENTRIES_FIRST = "50";

export function ConversationSettings({ card, onChanged }: { readonly card: ConversationDetails; readonly onChanged: () => void }) {
  const { id, kind } = card;
  const [receipts, setReceipts] = useState<Receipts>(card.receipts ?? "none");
  const [mentionAll, setMentionAll] = useState<MentionAll>(card.mention_all ?? "admins");
  const [blocks, setBlocks] = useState<Blocks>(card.blocks ?? "ignore");
  const [historyKind, setHistoryKind] = useState<HistoryKind>(typeof card.history === "object" ? "last" : (card.history ?? "all"));
  const [last, setLast] = useState(typeof card.history === "object" ? String(card.history.last) : ENTRIES_FIRST);
  const [outcome, setOutcome] = useState<string>();
  const { isRunning, failure, run } = useAction();

  const isLastWrong = historyKind === "last" && !/^\d{1,15}$/u.test(last.trim());
  const history = historyKind === "last" ? { last: Number(last) } : historyKind;
  const changed: Settings = {
    ...(receipts !== card.receipts && { receipts }),
    ...(JSON.stringify(history) !== JSON.stringify(card.history ?? "all") && { history }),
    ...(mentionAll !== card.mention_all && { mention_all: mentionAll }),
    ...(kind !== "direct" && blocks !== (card.blocks ?? "ignore") && { blocks }),
  };
  const save = async (): Promise<void> => {
    setOutcome(undefined);
    const isSure = await confirmed({ title: `Change the settings of ${id}?`, text: `${told(changed).join(" ")} Members see in the history that the app has changed the conversation.`, action: "Change" });
    if (!isSure) return;
    const request = { method: "PATCH" as const, path: path`/v1/conversations/${id}`, body: changed };
    if (!(await run(() => change(`Change the settings of ${id}`, request)))) return;
    setOutcome("The settings are changed.");
    onChanged();
  };
  return (
    <Card title="Settings">
      <form class="stack" noValidate onSubmit={(event) => { event.preventDefault(); void save(); }}>
        <div class="fields is-wide">
          <SelectField label="What members learn of receipts" value={receipts} options={RECEIPTS} onInput={setReceipts} />
          {/* In a direct conversation there are no newcomers, and both users may mention everybody. */}
          {kind !== "direct" && <SelectField label="Who may mention @all" value={mentionAll} options={MENTION_ALL} onInput={setMentionAll} />}
          {kind !== "direct" && <SelectField label="What members read from before they joined" value={historyKind} options={HISTORY} onInput={setHistoryKind} />}
          {kind !== "direct" && <SelectField label="How members are notified of those whom they block" value={blocks} options={BLOCKS} onInput={setBlocks} />}
          {historyKind === "last" && <TextField label="Entries from before" type="number" value={last} error={isLastWrong ? "A whole number of entries." : undefined} onInput={setLast} />}
        </div>
        <Failure text={failure} />
        <Outcome text={outcome} />
        <div class="row"><button type="submit" class="plain" disabled={!may("users") || isRunning || isLastWrong || Object.keys(changed).length === 0}>Change…</button></div>
      </form>
    </Card>
  );
}

/** A sentence for each change. */
function told({ receipts, history, mention_all: mentionAll, blocks }: Settings): readonly string[] {
  const name = <T extends string>(options: readonly (readonly [T, string])[], value: T): string => (options.find(([one]) => one === value)?.[1] ?? value).toLowerCase();
  return [
    ...(receipts !== undefined ? [`Members learn of receipts: ${name(RECEIPTS, receipts)}.`] : []),
    ...(mentionAll !== undefined ? [`@all may be mentioned by: ${name(MENTION_ALL, mentionAll)}.`] : []),
    ...(blocks !== undefined ? [`Members are notified of messages of those whom they block: ${name(BLOCKS, blocks)}.`] : []),
    ...(history !== undefined ? [`Members read from before they joined: ${typeof history === "object" ? `at most ${history.last} entries` : name(HISTORY, history)}. That holds for present members, too.`] : []),
  ];
}
