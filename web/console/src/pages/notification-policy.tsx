// The policy that decides by which channels people are notified, and its versions.
import { useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { JsonEditor } from "../parts/json-editor.js";
import { Badge, Card, Failure, Foreign, Loaded, Page, Reload, Table, Time } from "../parts/layout.js";
import { words } from "../parts/notification-check.js";
import { ask, change } from "../state/api.js";
import { inline, span } from "../state/format.js";
import { may } from "../state/own-key.js";
import { href } from "../state/route.js";
import type { PolicyRule, StoredPolicy } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";

const POLICY = "/v1/notifications/policy";

export function PolicyPage() {
  const policy = useAsk(() => ask<StoredPolicy>(POLICY), []);
  const [saved, setSaved] = useState<string>();
  const onSaved = (text: string): void => {
    setSaved(text);
    policy.reload();
  };
  return (
    <Page
      title="Notification policy"
      about="The first rule that applies to a message and a person decides. A message goes by the version that decided it to its end: a change is for messages from then on."
      actions={<a class="plain" href={href("notifications")}>Notifications</a>}
    >
      <Loaded asked={policy}>
        {(found) => (
          <>
            <Card title="Rules" note={found.version === 0 || found.removed === true ? "the default, from the settings" : `version ${found.version}`} actions={<Reload asked={policy} />}>
              <Rules rules={found.policy.rules} />
            </Card>
            {may("admin") && <Editor key={`${found.version} ${found.removed === true}`} policy={found} saved={saved} onSaved={onSaved} />}
          </>
        )}
      </Loaded>
      <Versions version={policy.data?.version} />
    </Page>
  );
}

function Rules({ rules }: { readonly rules: readonly PolicyRule[] }) {
  return (
    <Table
      label="Rules"
      empty="No rule: nobody is notified."
      columns={[{ title: "Rule" }, { title: "Messages" }, { title: "When" }, { title: "Channels, in their order" }]}
      rows={rules.map(({ id, for: scope, when, channels }) => ({
        key: id,
        cells: [
          <Foreign>{id}</Foreign>,
          <Foreign>{[...(scope?.kinds ?? []), ...(scope?.types ?? [])].join(", ") || "all"}</Foreign>,
          when ? <code>{inline(when)}</code> : "always",
          <span class="row">
            {(channels ?? []).map(({ channel, after_s: after, providers }, index) => (
              <Badge key={index}>{words(channel)}{providers ? ` (${providers.map(words).join(", ")})` : ""}{after ? ` after ${span(after * 1_000)}` : ""}</Badge>
            ))}
          </span>,
        ],
      }))}
    />
  );
}

function Editor({ policy: { version, policy, removed = false }, saved, onSaved }: {
  readonly policy: StoredPolicy;
  readonly saved: string | undefined;
  readonly onSaved: (text: string) => void;
}) {
  const { isRunning, failure, run } = useAction();
  const isDefault = version === 0 || removed;
  const headers = { "if-match": `"${version}"` };
  const save = async (document: unknown): Promise<void> => {
    const isSure = await confirmed({ title: "Put this policy in force?", text: "From now on every message is decided by it, on all nodes. What waits already goes by the version that decided it.", action: "Put in force" });
    if (!isSure) return;
    const { version: now } = await change<StoredPolicy>("Change the notification policy", { method: "PUT", path: POLICY, body: document, headers });
    onSaved(`In force as version ${now}.`);
  };
  const remove = async (): Promise<void> => {
    const isSure = await confirmed({ title: "Go back to the default policy?", text: "The policy is removed, and the default of the settings decides from now on. The versions stay.", action: "Remove the policy", isDangerous: true });
    if (!isSure) return;
    if (await run(() => change("Remove the notification policy", { method: "DELETE", path: POLICY, headers }))) onSaved("The default is in force.");
  };
  return (
    <>
      <Failure text={failure} />
      <JsonEditor
        title="Change it"
        document={policy}
        saveLabel="Put in force…"
        saved={saved}
        onSave={save}
        actions={!isDefault && <button type="button" class="danger" disabled={isRunning || !may("admin")} onClick={() => void remove()}>Remove…</button>}
      />
    </>
  );
}

function Versions({ version }: { readonly version: number | undefined }) {
  const asked = useAsk(() => ask<{ readonly versions: readonly StoredPolicy[] }>(`${POLICY}/versions`), [version]);
  return (
    <Card title="Versions">
      <Loaded asked={asked}>
        {({ versions }) => (
          <Table
            label="Versions"
            empty="No policy was ever stored."
            columns={[{ title: "Version" }, { title: "Written" }, { title: "By" }, { title: "As written" }]}
            rows={versions.map((one) => ({
              key: one.version,
              cells: [
                one.version, one.updated_at ? <Time at={one.updated_at} /> : "–", <Foreign>{one.updated_by ?? "–"}</Foreign>,
                one.removed === true ? "removed" : <details><summary>JSON</summary><pre tabIndex={0}>{JSON.stringify(one.policy, undefined, 2)}</pre></details>,
              ],
            }))}
          />
        )}
      </Loaded>
    </Card>
  );
}
