// Popups: all of them, and the pages of one.
import { useState } from "preact/hooks";
import { Badge, Card, Foreign, Loaded, Page, Reload, Table, Time, type Tone } from "../parts/layout.js";
import { PagedTable, usePages } from "../parts/paged-table.js";
import { ask, path } from "../state/api.js";
import { href, type Route } from "../state/route.js";
import type { Popup, PopupPage, PopupState } from "../state/types.js";
import { useAsk } from "../state/use-ask.js";
import { PopupEditor } from "./popup-editor.js";
import { ExplainPage } from "./popup-explain.js";
import { PopupLiftCard } from "./popup-lift.js";
import { PopupResults } from "./popup-results.js";

export const STATE_TONES: Readonly<Record<PopupState, Tone>> = { draft: "plain", scheduled: "accent", live: "good", paused: "warn", ended: "plain" };

export function PopupsPage({ route }: { readonly route: Route }) {
  const [, kind, id] = route.parts;
  if (kind === "new") return <Page title="New popup"><PopupEditor key="new" popup={undefined} saved={undefined} onSaved={() => undefined} /></Page>;
  if (kind === "explain") return <ExplainPage route={route} />;
  if (kind === "one" && id !== undefined) return <PopupPageOf key={id} id={id} />;
  return <PopupList />;
}

function PopupList() {
  const page = usePages<PopupPage>("/v1/popups");
  return (
    <Page
      title="Popups"
      about="In-app messages, each with its rules on who is shown it, when, and how often."
      actions={<><a class="plain" href={href("popups", "explain")}>Explain for a user</a><a class="primary" href={href("popups", "new")}>New popup</a></>}
    >
      <Card title="All popups" actions={<Reload asked={page} />}>
        <PagedTable
          pages={page}
          label="Popups"
          empty="There is no popup yet."
          columns={[{ title: "Popup" }, { title: "State" }, { title: "Placements" }, { title: "Priority", isNumber: true }, { title: "Variants", isNumber: true }, { title: "Version", isNumber: true }, { title: "Changed" }]}
          rows={({ popups }) => popups.map(({ id, now, spec, version, updated_at: at, updated_by: by }) => ({
            key: id,
            cells: [
              <><a class="link" href={href("popups", "one", id)}><Foreign>{spec.name || id}</Foreign></a>{spec.name && <> <span class="soft"><bdi>{id}</bdi></span></>}</>,
              <Badge tone={STATE_TONES[now]}>{now}</Badge>, <Foreign>{spec.placements.join(", ")}</Foreign>, spec.priority ?? 0, spec.variants.length, version,
              <><Time at={at} />{by && <span class="soft"> by <bdi>{by}</bdi></span>}</>,
            ],
          }))}
        />
      </Card>
    </Page>
  );
}

function PopupPageOf({ id }: { readonly id: string }) {
  const popup = useAsk(() => ask<Popup>(path`/v1/popups/${id}`), [id]);
  const [saved, setSaved] = useState<string>();
  const onSaved = (version: number): void => {
    setSaved(`Saved as version ${version}.`);
    popup.reload();
  };
  return (
    <Page
      title={<><Foreign>{popup.data?.spec.name || id}</Foreign> {popup.data && <Badge tone={STATE_TONES[popup.data.now]}>{popup.data.now}</Badge>}</>}
      about={<><bdi>{id}</bdi>{popup.data && `, version ${popup.data.version}`}</>}
      actions={<a class="plain" href={href("popups")}>All popups</a>}
    >
      <Loaded asked={popup}>
        {(found) => (
          <>
            <PopupResults id={id} variants={found.spec.variants.map((variant) => variant.id)} />
            {found.spec.conversion && <PopupLiftCard id={id} conversion={found.spec.conversion} />}
            <PopupEditor key={found.version} popup={found} saved={saved} onSaved={onSaved} />
            <Versions id={id} version={found.version} />
          </>
        )}
      </Loaded>
    </Page>
  );
}

function Versions({ id, version }: { readonly id: string; readonly version: number }) {
  const asked = useAsk(() => ask<{ readonly versions: readonly Popup[] }>(path`/v1/popups/${id}/versions`), [id, version]);
  return (
    <Card title="Versions" note="the newest 100">
      <Loaded asked={asked}>
        {({ versions }) => (
          <Table
            label="Versions"
            columns={[{ title: "Version" }, { title: "State" }, { title: "Written" }, { title: "By" }, { title: "As written" }]}
            rows={versions.map((one) => ({
              key: one.version,
              cells: [one.version, one.spec.state ?? "draft", <Time at={one.updated_at} />, <Foreign>{one.updated_by ?? "–"}</Foreign>, <details><summary>JSON</summary><pre tabIndex={0}>{JSON.stringify(one.spec, undefined, 2)}</pre></details>],
            }))}
          />
        )}
      </Loaded>
    </Card>
  );
}
