// Sends of official accounts to some of their followers, and how far they have come.
import { useEffect } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { Badge, Card, Failure, Foreign, Page, Reload, Time, type Tone } from "../parts/layout.js";
import { PagedTable, usePages } from "../parts/paged-table.js";
import { change, path } from "../state/api.js";
import { count } from "../state/format.js";
import { may } from "../state/own-key.js";
import { href } from "../state/route.js";
import type { BulkSend, BulkSendPage } from "../state/types.js";
import { useAction } from "../state/use-ask.js";

const FOLLOW_EVERY_MS = 2_000;
const TONES: Readonly<Record<BulkSend["status"], Tone>> = { running: "accent", done: "good", cancelled: "warn", failed: "bad" };

export function BulkSendsPage() {
  const page = usePages<BulkSendPage>("/v1/bulk-sends");
  const { isRunning, failure, run } = useAction();
  const isFollowed = page.data?.bulk_sends.some(({ status }) => status === "running") ?? false;
  useEffect(() => {
    if (!isFollowed) return undefined;
    const timer = setInterval(page.reload, FOLLOW_EVERY_MS);
    return () => clearInterval(timer);
  }, [isFollowed, page.reload]);
  const cancel = async ({ id, sent }: BulkSend): Promise<void> => {
    const isSure = await confirmed({ title: `Cancel bulk send ${id}?`, text: `No further follower is sent it. Those who have it (${count(sent)} now) keep it.`, action: "Cancel the send", isDangerous: true });
    if (isSure) await run(() => change(`Cancel bulk send ${id}`, { method: "DELETE", path: path`/v1/bulk-sends/${id}` }));
    page.reload();
  };
  return (
    <Page title="Bulk sends" about="Messages of official accounts to some of their followers, by list, segment or rule.">
      <Card title="All bulk sends" note="newest first" actions={<Reload asked={page} />}>
        <Failure text={failure} />
        <PagedTable
          pages={page}
          label="Bulk sends"
          empty="Nothing was sent to followers by list, segment or rule."
          columns={[{ title: "Send" }, { title: "Account" }, { title: "State" }, { title: "Examined", isNumber: true }, { title: "Sent", isNumber: true }, { title: "Failed", isNumber: true }, { title: "Created" }, { title: "Ended" }, { title: "Last error" }, { title: "" }]}
          rows={({ bulk_sends: sends }) => sends.map((send) => ({
            key: send.id,
            cells: [
              <>{send.id}{send.client_bulk_id && <> <span class="soft"><bdi>{send.client_bulk_id}</bdi></span></>}</>,
              <a class="link" href={href("conversations", send.account)}><Foreign>{send.account}</Foreign></a>,
              <Badge tone={TONES[send.status]}>{send.status}</Badge>, count(send.examined), count(send.sent), count(send.failed),
              <Time at={send.created_at} />, send.ended_at ? <Time at={send.ended_at} /> : "–", send.last_error ? <span class="failure"><bdi>{send.last_error}</bdi></span> : "–",
              send.status === "running" ? <button type="button" class="danger small" disabled={isRunning || !may("send")} aria-label={`Cancel bulk send ${send.id}`} onClick={() => void cancel(send)}>Cancel…</button> : "",
            ],
          }))}
        />
      </Card>
    </Page>
  );
}
