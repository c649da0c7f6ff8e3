// Lists of users, to which rules of audiences and bulk sends refer.
import { useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { Outcome, TextField } from "../parts/form.js";
import { Card, Failure, Foreign, Loaded, Page, Reload, Table, Time } from "../parts/layout.js";
import { ask, change, path, RefusedError } from "../state/api.js";
import { count, plural } from "../state/format.js";
import type { Segment } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";

export function SegmentsPage() {
  const asked = useAsk(() => ask<{ readonly segments: readonly Segment[] }>("/v1/popup-segments"), []);
  const { isRunning, failure, run } = useAction();
  const remove = async ({ id, users }: Segment): Promise<void> => {
    const isSure = await confirmed({ title: `Remove the list ${id}?`, text: `The list of ${plural(users, "user")} is removed. Rules that refer to it then hold for nobody. The users themselves stay.`, action: "Remove the list", isDangerous: true });
    if (isSure) await run(() => change(`Remove segment ${id}`, { method: "DELETE", path: path`/v1/popup-segments/${id}` }));
    asked.reload();
  };
  return (
    <Page title="Segments" about="Lists of users that your own servers upload; rules of popups, journeys and bulk sends refer to them by name.">
      <Card title="All segments" actions={<Reload asked={asked} />}>
        <Failure text={failure} />
        <Loaded asked={asked}>
          {({ segments }) => (
            <Table
              label="Segments"
              empty="No list was uploaded yet: PUT /v1/popup-segments/{segment}, one id a line."
              columns={[{ title: "Segment" }, { title: "Users", isNumber: true }, { title: "Uploaded" }, { title: "" }]}
              rows={segments.map((one) => ({
                key: one.id,
                cells: [<Foreign>{one.id}</Foreign>, count(one.users), <Time at={one.updated_at} />, <button type="button" class="danger small" disabled={isRunning} aria-label={`Remove segment ${one.id}`} onClick={() => void remove(one)}>Remove…</button>],
              }))}
            />
          )}
        </Loaded>
      </Card>
      <Membership />
    </Page>
  );
}

function Membership() {
  const [segment, setSegment] = useState("");
  const [user, setUser] = useState("");
  const [found, setFound] = useState<string>();
  const { isRunning, failure, run } = useAction();
  const look = (): Promise<boolean> => run(async () => {
    setFound(undefined);
    try {
      await ask(path`/v1/popup-segments/${segment.trim()}/users/${user.trim()}`);
      setFound(`${user.trim()} is in ${segment.trim()}.`);
    } catch (error) {
      if (error instanceof RefusedError && error.status === 404) setFound(`${user.trim()} is not in ${segment.trim()}, or there is no such list.`);
      else throw error;
    }
  });
  return (
    <Card title="Is a user in a segment?">
      <form class="stack" noValidate onSubmit={(event) => { event.preventDefault(); if (segment.trim() !== "" && user.trim() !== "") void look(); }}>
        <div class="fields">
          <TextField label="Segment" value={segment} onInput={setSegment} />
          <TextField label="User" value={user} onInput={setUser} />
        </div>
        <div class="row"><button type="submit" class="plain" disabled={isRunning}>Look</button></div>
        <Failure text={failure} />
        <Outcome text={found} />
      </form>
    </Card>
  );
}
