// Who this window is: a demo user of the address (`?user=bob`), of this window before, or of a choice.
import { connect, indexedDbStorage, type Tidings } from "@tidings/client";
import { useEffect, useState } from "preact/hooks";
import { Assistant } from "./demo/assistant.js";
import { Messenger } from "./messenger.js";
import { Avatar } from "./parts/avatar.js";
import { SessionContext, type DemoUser, type Session } from "./state/context.js";
import { Drafts } from "./state/drafts.js";
import { Names } from "./state/names.js";
import { reason } from "./state/toasts.js";

const CHOSEN = "tidings user";

/** The users to be, and the one who answers. */
interface Demo {
  readonly users: readonly DemoUser[];
  readonly assistant: DemoUser;
}

async function demoUsers(): Promise<Demo> {
  const answer = await fetch("/page/users");
  if (!answer.ok) throw new Error(((await answer.json()) as { readonly detail?: string }).detail ?? `status ${answer.status}`);
  return (await answer.json()) as Demo;
}

function chosenUser(): string | undefined {
  return new URLSearchParams(location.search).get("user") ?? sessionStorage.getItem(CHOSEN) ?? undefined;
}

function choose(user: string | undefined): void {
  const url = new URL(location.href);
  if (user === undefined) {
    sessionStorage.removeItem(CHOSEN);
    url.searchParams.delete("user");
    url.hash = "";
  } else {
    sessionStorage.setItem(CHOSEN, user);
    url.searchParams.set("user", user);
  }
  history.replaceState(null, "", url);
}

async function open({ users }: Demo, user: string): Promise<Tidings> {
  let first = users.find(({ id }) => id === user)?.token;
  const token = async (): Promise<string | null> => {
    const unused = first;
    first = undefined;
    return unused ?? (await demoUsers()).users.find(({ id }) => id === user)?.token ?? null;
  };
  return connect({ url: location.origin, token, storage: indexedDbStorage(`tidings ${user}`) });
}

export function Page() {
  const [demo, setDemo] = useState<Demo>();
  const [user, setUser] = useState(chosenUser);
  const [session, setSession] = useState<Session>();
  const [failure, setFailure] = useState<string>();

  useEffect(() => {
    demoUsers().then(setDemo, (error: unknown) => setFailure(reason(error)));
  }, []);

  useEffect(() => {
    if (!demo || user === undefined) return undefined;
    const { users: people } = demo;
    if (!people.some(({ id }) => id === user)) {
      choose(undefined);
      setUser(undefined);
      return undefined;
    }
    choose(user);
    let tidings: Tidings | undefined;
    let isOver = false;
    const switchUser = (): void => {
      choose(undefined);
      setUser(undefined);
    };
    const answers = new Assistant(demo.assistant.id, demo.assistant.name, async () => (await demoUsers()).assistant.token);
    open(demo, user).then(
      (opened) => {
        tidings = opened;
        if (isOver) void opened.close();
        else {
          const names = new Names(opened, [...people, demo.assistant]);
          setSession({ tidings: opened, names, drafts: new Drafts(user), people, assistant: answers, switchUser });
        }
      },
      (error: unknown) => setFailure(reason(error)),
    );
    return () => {
      isOver = true;
      setSession(undefined);
      void tidings?.close();
    };
  }, [demo, user]);

  if (failure !== undefined) return <Notice title="The chat could not start" text={failure} />;
  if (!demo) return <Notice title="Tidings" text="Connecting…" />;
  if (user === undefined) return <Choice people={demo.users} onChoose={setUser} />;
  if (!session) return <Notice title="Tidings" text="Connecting…" />;
  return (
    <SessionContext.Provider value={session}>
      <Messenger key={user} />
    </SessionContext.Provider>
  );
}

function Notice({ title, text }: { readonly title: string; readonly text: string }) {
  return (
    <main class="welcome">
      <h1>{title}</h1>
      <p role="status">{text}</p>
    </main>
  );
}

function Choice({ people, onChoose }: { readonly people: readonly DemoUser[]; readonly onChoose: (user: string) => void }) {
  return (
    <main class="welcome">
      <h1>Who are you in this window?</h1>
      <p>These are demo users. Open the page in another window and be somebody else: the two of you can talk.</p>
      <ul class="people">
        {people.map(({ id, name }) => (
          <li key={id}>
            <button type="button" class="person" onClick={() => onChoose(id)}>
              <Avatar id={id} name={name} />
              <bdi>{name}</bdi>
            </button>
          </li>
        ))}
      </ul>
    </main>
  );
}
