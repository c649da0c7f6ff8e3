// Who holds sessions: the nodes, and whether the registered sessions are those that exist.
import { useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { Card, Facts, Failure, Finding, Loaded, Page, Reload, Table } from "../parts/layout.js";
import { Outcome } from "../parts/form.js";
import { ask, change } from "../state/api.js";
import { clock, count, plural } from "../state/format.js";
import { href } from "../state/route.js";
import type { NodesAnswer, PresenceComparison } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";
import { NodeTable } from "./live.js";

const COMPARE = "/v1/admin/presence/compare";
const KINDS: { readonly [kind: string]: string } = {
  ghost: "registered, but held by no node",
  missing: "held by a node, but not registered",
  wrong_node: "registered at another node than the one that holds it",
};

export function PresencePage() {
  const nodes = useAsk(() => ask<NodesAnswer>("/v1/admin/nodes"), []);
  return (
    <Page title="Presence" about="Sessions are registered for all nodes to see. Now and then the registry may differ from the connections that exist.">
      <Comparison />
      <Card title="Nodes" actions={<Reload asked={nodes} />}>
        <Loaded asked={nodes}>{(answer) => <NodeTable nodes={answer.nodes} />}</Loaded>
      </Card>
    </Page>
  );
}

function Comparison() {
  const [found, setFound] = useState<{ readonly at: number; readonly comparison: PresenceComparison }>();
  const { isRunning, failure, run } = useAction();
  const [repaired, setRepaired] = useState<string>();

  const compare = (): Promise<boolean> =>
    run(async () => {
      setRepaired(undefined);
      setFound({ comparison: await ask<PresenceComparison>(COMPARE, { repair: false }), at: Date.now() });
    });
  const repair = async (differences: number): Promise<void> => {
    const isSure = await confirmed({
      title: "Repair the registry?",
      text: `The server compares again and mends what differs, about ${plural(differences, "session")}: registered sessions that no node holds are removed, and those that are held are registered where they are. Users may be announced online or offline by it. No connection is closed.`,
      action: "Repair",
    });
    if (!isSure) return;
    await run(async () => {
      const comparison = await change<PresenceComparison>("Repair the registry of sessions", { method: "POST", path: COMPARE, body: { repair: true } });
      setFound({ comparison, at: Date.now() });
      setRepaired(`Mended: ${plural(comparison.repaired, "difference")}.`);
    });
  };

  const differences = found ? found.comparison.ghosts + found.comparison.missing + found.comparison.wrong_node : 0;
  return (
    <Card
      title="Compare"
      note={found ? `compared at ${clock(found.at)}` : "reads every session, so it is not done by itself"}
      actions={
        <>
          <button type="button" class="plain" disabled={isRunning} onClick={() => void compare()}>{isRunning ? "Comparing…" : "Compare now"}</button>
          {differences > 0 && <button type="button" class="primary" disabled={isRunning} onClick={() => void repair(differences)}>Repair…</button>}
        </>
      }
    >
      <div class="stack">
        <Failure text={failure} />
        <Outcome text={repaired} />
        {found && <Found comparison={found.comparison} differences={differences} />}
      </div>
    </Card>
  );
}

function Found({ comparison, differences }: { readonly comparison: PresenceComparison; readonly differences: number }) {
  return (
    <>
      <Facts facts={[["Registered", count(comparison.registered)], ["Held by nodes", count(comparison.held)], ["Ghosts", count(comparison.ghosts)], ["Missing", count(comparison.missing)], ["At the wrong node", count(comparison.wrong_node)]]} />
      {differences === 0 ? (
        <ul class="findings"><Finding tone="good">The registry agrees with the connections.</Finding></ul>
      ) : (
        <Table
          label="Differences"
          columns={[{ title: "Difference" }, { title: "User" }, { title: "Device" }, { title: "Session" }, { title: "Node" }]}
          rows={comparison.differences.map(({ kind, user, device_id: device, session, node }) => ({
            key: session + kind,
            cells: [KINDS[kind] ?? kind, <a class="link" href={href("users", user)}><bdi>{user}</bdi></a>, <bdi>{device}</bdi>, <code>{session}</code>, <bdi>{node}</bdi>],
          }))}
        />
      )}
    </>
  );
}
