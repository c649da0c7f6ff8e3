import { useObservable } from "../../../src/state/cell.js";
import { Badge, Card, Page, Table } from "../parts/layout.js";
import { changes } from "../state/changes.js";
import { dateTime } from "../state/format.js";

export function ChangesPage() {
  const all = useObservable(changes);
  return (
    <Page title="Your changes" about="What this tab has changed, newest first. The server's log has a line of each under the target audit, with your name.">
      <Card title="Changes">
        <Table
          label="Changes"
          empty="Nothing has been changed in this tab."
          columns={[{ title: "When" }, { title: "What" }, { title: "Outcome" }, { title: "By" }, { title: "Request" }]}
          rows={all.map(({ at, operator, what, request, outcome, isDone }, index) => ({
            key: all.length - index,
            cells: [dateTime(at), <bdi>{what}</bdi>, <Badge tone={isDone ? "good" : "bad"}>{outcome}</Badge>, <bdi>{operator}</bdi>, <code>{request}</code>],
          }))}
        />
      </Card>
    </Page>
  );
}
