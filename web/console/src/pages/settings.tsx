// The settings that this node runs with, and where each comes from.
import { useState } from "preact/hooks";
import { TextField, Tabs } from "../parts/form.js";
import { Badge, Card, Loaded, Page, Reload, Table, type Tone } from "../parts/layout.js";
import { ask } from "../state/api.js";
import type { SettingView } from "../state/types.js";
import { useAsk } from "../state/use-ask.js";

type Source = SettingView["source"];
const SOURCES: Readonly<Record<Source, readonly [string, Tone]>> = {
  default: ["default", "plain"],
  file: ["file", "accent"],
  environment: ["environment", "accent"],
  flag: ["flag", "accent"],
  development: ["development mode", "warn"],
};

export function SettingsPage() {
  const asked = useAsk(() => ask<{ readonly settings: readonly SettingView[] }>("/v1/admin/settings"), []);
  const [wanted, setWanted] = useState("");
  const [which, setWhich] = useState<"all" | "set">("all");
  const fits = ({ name, description, source, adjusted }: SettingView): boolean =>
    (which === "all" || source !== "default" || adjusted) && `${name} ${description}`.toLowerCase().includes(wanted.trim().toLowerCase());
  return (
    <Page title="Settings" about={`Of the node at ${location.host}. A flag overrides a variable, a variable the file, the file the default. Secrets stay on the server.`} actions={<Reload asked={asked} />}>
      <div class="row is-low">
        <TextField label="Find a setting" type="search" value={wanted} onInput={setWanted} />
        <Tabs label="Which settings" tabs={[["all", "All"], ["set", "Not by default"]]} chosen={which} onChoose={setWhich} />
      </div>
      <Loaded asked={asked}>
        {({ settings }) => {
          const shown = settings.filter(fits);
          const tables = [...new Set(shown.map(tableOf))];
          if (shown.length === 0) return <p class="nothing">No setting fits.</p>;
          return <>{tables.map((table) => <SettingTable key={table} table={table} settings={shown.filter((setting) => tableOf(setting) === table)} />)}</>;
        }}
      </Loaded>
    </Page>
  );
}

function tableOf({ name }: SettingView): string {
  return name.includes(".") ? name.slice(0, name.indexOf(".")) : "";
}

function SettingTable({ table, settings }: { readonly table: string; readonly settings: readonly SettingView[] }) {
  const title = table === "" ? "Server" : `[${table}]`;
  return (
    <Card title={title}>
      <Table
        label={title}
        columns={[{ title: "Setting" }, { title: "Value" }, { title: "From" }]}
        rows={settings.map((setting) => ({ key: setting.name, cells: [<Name {...setting} />, <Value {...setting} />, <From {...setting} />] }))}
      />
    </Card>
  );
}

function Name({ name, description }: SettingView) {
  return <><span class="setting-name">{name}</span><p class="setting-about"><Described text={description} /></p></>;
}

/** What stands between backticks is code. */
function Described({ text }: { readonly text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part))}</>;
}

function Value({ value, secret, default: usual }: SettingView) {
  if (secret) return <Badge tone="warn">set, not shown</Badge>;
  if (value === undefined) return <span class="soft">not set</span>;
  return (
    <>
      <code>{value}</code>
      {usual !== undefined && usual !== value && <p class="setting-about">by default <code>{usual}</code></p>}
    </>
  );
}

function From({ source, adjusted }: SettingView) {
  const [name, tone] = SOURCES[source];
  return <><Badge tone={tone}>{name}</Badge>{adjusted && <p class="setting-about">fitted to this machine at the start</p>}</>;
}
