// The key first; then the pages, each by its route.
import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useObservable } from "../../src/state/cell.js";
import { isDark, switchTheme, theme } from "../../src/state/theme.js";
import { collected, startCollecting } from "./metrics/collector.js";
import { BulkSendsPage } from "./pages/bulk-sends.js";
import { ChangesPage } from "./pages/changes.js";
import { ConsumersPage } from "./pages/consumers.js";
import { ConversationsPage } from "./pages/conversations.js";
import { JourneysPage } from "./pages/journeys.js";
import { KeysPage, loadOwnKey } from "./pages/keys.js";
import { LivePage } from "./pages/live.js";
import { ModerationPage } from "./pages/moderation.js";
import { NotificationsPage } from "./pages/notifications.js";
import { OutboxesPage } from "./pages/outboxes.js";
import { PopupsPage } from "./pages/popups.js";
import { PresencePage } from "./pages/presence.js";
import { PushesPage } from "./pages/pushes.js";
import { ReportsPage } from "./pages/reports.js";
import { SegmentsPage } from "./pages/segments.js";
import { SettingsPage } from "./pages/settings.js";
import { SignIn } from "./pages/sign-in.js";
import { UsersPage } from "./pages/users.js";
import { Banner } from "./parts/banner.js";
import { ConfirmPlace } from "./parts/confirm.js";
import { Icon, IconButton, type IconName } from "./parts/icon.js";
import { Page } from "./parts/layout.js";
import { credentials, signOut } from "./state/credentials.js";
import { may, ownKey } from "./state/own-key.js";
import { href, useRoute, type Route } from "./state/route.js";
import type { KeyScope } from "./state/types.js";

interface Place {
  readonly name: string;
  readonly icon: IconName;
  readonly page: ComponentType<{ readonly route: Route }>;
  /** The scope without which a key sees nothing there. */
  readonly needs?: KeyScope;
}

const PLACES: Readonly<Record<string, Place>> = {
  live: { name: "Live", icon: "pulse", page: LivePage },
  users: { name: "Users", icon: "user", page: UsersPage, needs: "users" },
  conversations: { name: "Conversations", icon: "chat", page: ConversationsPage, needs: "read" },
  "bulk-sends": { name: "Bulk sends", icon: "send", page: BulkSendsPage, needs: "read" },
  moderation: { name: "Reports", icon: "log", page: ModerationPage, needs: "moderation" },
  notifications: { name: "Notifications", icon: "webhook", page: NotificationsPage, needs: "read" },
  consumers: { name: "Event consumers", icon: "feed", page: ConsumersPage, needs: "read" },
  outboxes: { name: "Outboxes", icon: "log", page: OutboxesPage, needs: "read" },
  pushes: { name: "Pushes", icon: "push", page: PushesPage, needs: "push" },
  popups: { name: "Popups", icon: "popup", page: PopupsPage, needs: "popups" },
  journeys: { name: "Journeys", icon: "journey", page: JourneysPage, needs: "popups" },
  segments: { name: "Segments", icon: "segment", page: SegmentsPage, needs: "popups" },
  presence: { name: "Presence", icon: "presence", page: PresencePage, needs: "admin" },
  settings: { name: "Settings", icon: "settings", page: SettingsPage, needs: "admin" },
  keys: { name: "API keys", icon: "key", page: KeysPage },
  reports: { name: "Lab reports", icon: "report", page: ReportsPage },
  changes: { name: "Your changes", icon: "log", page: ChangesPage },
};

export function App() {
  const given = useObservable(credentials);
  useObservable(theme);
  return given ? <Frame operator={given.operator} /> : <SignIn />;
}

function Frame({ operator }: { readonly operator: string }) {
  useEffect(startCollecting, []);
  useEffect(() => void loadOwnKey(), []);
  useObservable(ownKey);
  const route = useRoute();
  const [first = "live"] = route.parts;
  const place = PLACES[first];
  const main = useRef<HTMLElement>(null);
  const where = route.parts.join("/");
  const isFirst = useRef(true);

  useEffect(() => {
    document.title = `${place?.name ?? "Not found"} · Tidings console`;
    // A reader hears the new page; at the first one the browser speaks.
    if (!isFirst.current) main.current?.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
    isFirst.current = false;
    main.current?.scrollTo(0, 0);
    // On a phone the pages stand in a row that scrolls.
    document.querySelector(".place[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [where]);

  const Chosen = place?.page;
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>To the content</a>
      <header class="side">
        <p class="brand"><span class="brand-mark" aria-hidden="true">T</span>Tidings <span class="soft">console</span></p>
        <nav aria-label="Pages">
          <ul>
            {Object.entries(PLACES).filter(([, { needs }]) => needs === undefined || may(needs)).map(([id, { name, icon }]) => (
              <li key={id}>
                <a href={href(id)} class="place" {...(id === first && { "aria-current": "page" as const })}>
                  <Icon name={icon} /><span>{name}</span>
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <div class="side-end">
          <NodeLine />
          <div class="who">
            <bdi class="who-name" title={operator}>{operator}</bdi>
            <IconButton icon={isDark() ? "sun" : "moon"} label={isDark() ? "Light colours" : "Dark colours"} onClick={switchTheme} />
            <IconButton icon="leave" label="Sign out" onClick={() => signOut()} />
          </div>
        </div>
      </header>
      <div class="body">
        <Banner />
        <main ref={main} id="main" tabIndex={-1}>
          {place?.needs !== undefined && !may(place.needs) ? <NotAllowed {...place} needs={place.needs} /> : Chosen ? <Chosen route={route} /> : <p class="nothing">There is no such page. <a class="link" href={href("live")}>To the live view</a></p>}
        </main>
      </div>
      <ConfirmPlace />
    </div>
  );
}

function NotAllowed({ name, needs }: Place & { readonly needs: KeyScope }) {
  return (
    <Page title={name}>
      <p class="nothing">Your key does not allow this: it needs the scope <code>{needs}</code>. <a class="link" href={href("keys")}>What it may do</a></p>
    </Page>
  );
}

/** Which node answers, and what it runs. */
function NodeLine() {
  const { newest } = useObservable(collected);
  const version = newest?.all("tidings_build_info")[0]?.labels["version"];
  return <p class="node-line soft">{location.host}{version !== undefined && ` · ${version}`}</p>;
}
