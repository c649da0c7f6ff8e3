// Who follows the feed of events, how far each is, and what its webhook did not take.
import { useEffect } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { Badge, Card, Failure, Foreign, Loaded, Page, Reload, Table, Time, type Tone } from "../parts/layout.js";
import { ask, change, path } from "../state/api.js";
import { count, plural } from "../state/format.js";
import { may } from "../state/own-key.js";
import type { EventConsumer } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";

const FOLLOW_EVERY_MS = 2_000;
const CONSUMERS = "/v1/event-consumers";
const TONES: Readonly<Record<EventConsumer["state"], Tone>> = { read: "accent", running: "good", waiting: "warn", stopped: "bad" };

interface Consumers {
  readonly consumers: readonly EventConsumer[];
}

export function ConsumersPage() {
  const asked = useAsk(() => ask<Consumers>(CONSUMERS), []);
  const { isRunning, failure, run } = useAction();
  useEffect(() => {
    const timer = setInterval(asked.reload, FOLLOW_EVERY_MS);
    return () => clearInterval(timer);
  }, [asked.reload]);
  const replayDead = async ({ name, dead_letters: dead }: EventConsumer): Promise<void> => {
    const isSure = await confirmed({ title: `Replay the dead letters of ${name}?`, text: `Its webhook is sent ${plural(dead, "event")} again. What it does not take in time becomes a dead letter again.`, action: "Replay" });
    if (isSure) await run(() => change(`Replay the dead letters of ${name}`, { method: "POST", path: `${path`/v1/event-consumers/${name}`}/dead-letters/replay`, body: {} }));
    asked.reload();
  };
  const restart = async ({ name }: EventConsumer): Promise<void> => {
    const isSure = await confirmed({ title: `Restart ${name}?`, text: `It is given the present state of everything, then what is committed from now on. What waits for another attempt is dropped.`, action: "Restart", isDangerous: true });
    if (isSure) await run(() => change(`Restart the consumer ${name}`, { method: "POST", path: `${path`/v1/event-consumers/${name}`}/replay`, body: { after: "start" } }));
    asked.reload();
  };
  const remove = async ({ name }: EventConsumer): Promise<void> => {
    const isSure = await confirmed({ title: `Delete ${name}?`, text: `Its place in the feed is forgotten, with what its webhook is still to be sent. This cannot be undone.`, action: "Delete the consumer", isDangerous: true });
    if (isSure) await run(() => change(`Delete the consumer ${name}`, { method: "DELETE", path: path`/v1/event-consumers/${name}` }));
    asked.reload();
  };
  return (
    <Page title="Event consumers" about="Your servers that follow the feed of events: by reading it, or by a webhook to which it is sent.">
      <Card title="All consumers" actions={<Reload asked={asked} />}>
        <Failure text={failure} />
        <Loaded asked={asked}>
          {({ consumers }) => (
            <Table
              label="Event consumers"
              empty="Nobody follows the feed under a name. A consumer is made over HTTP, with the key of the server that is to have it."
              columns={[{ title: "Name" }, { title: "State" }, { title: "Behind", isNumber: true }, { title: "Aside", isNumber: true }, { title: "Dead letters", isNumber: true }, { title: "Last error" }, { title: "" }]}
              rows={consumers.map((consumer) => ({
                key: consumer.name,
                cells: [
                  <>{consumer.name}<p class="setting-about"><Foreign>{consumer.webhook?.url ?? "reads its events"}</Foreign></p><p class="setting-about">{consumer.types.join(", ") || "all types"}</p></>,
                  <Badge tone={TONES[consumer.state]}>{consumer.state}</Badge>, count(consumer.behind), count(consumer.aside), count(consumer.dead_letters),
                  consumer.last_error ? <><Time at={consumer.last_error.at} /> <span class="failure"><bdi>{consumer.last_error.detail}</bdi></span></> : "–",
                  <span class="row">
                    <button type="button" class="plain small" disabled={isRunning || consumer.dead_letters === 0 || !may("admin")} aria-label={`Replay the dead letters of ${consumer.name}`} onClick={() => void replayDead(consumer)}>Replay…</button>
                    <button type="button" class="danger small" disabled={isRunning || !may("admin")} aria-label={`Restart ${consumer.name}`} onClick={() => void restart(consumer)}>Restart…</button>
                    <button type="button" class="danger small" disabled={isRunning || !may("admin")} aria-label={`Delete ${consumer.name}`} onClick={() => void remove(consumer)}>Delete…</button>
                  </span>,
                ],
              }))}
            />
          )}
        </Loaded>
      </Card>
    </Page>
  );
}
