import { useState } from "preact/hooks";
import { useObservable } from "../../../src/state/cell.js";
import { TextField } from "../parts/form.js";
import { Failure } from "../parts/layout.js";
import { whyKeyIsRefused } from "../state/api.js";
import { signIn, signInNote } from "../state/credentials.js";

const OPERATOR_CHARACTERS_MAX = 64;

/** Whether the key would leave this machine unencrypted. */
function isInClear(): boolean {
  return location.protocol === "http:" && !/^(?:localhost$|127\.|\[::1\]$)/u.test(location.hostname);
}

export function SignIn() {
  const note = useObservable(signInNote);
  const [key, setKey] = useState("");
  const [operator, setOperator] = useState("");
  const [failure, setFailure] = useState<string>();
  const [isTrying, setTrying] = useState(false);

  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const given = { key: key.trim(), operator: operator.trim().slice(0, OPERATOR_CHARACTERS_MAX) };
    if (given.key === "" || given.operator === "") {
      setFailure(given.operator === "" ? "Type in your name: the server's audit log names who changes what." : "Type in the API key.");
      return;
    }
    setTrying(true);
    const why = await whyKeyIsRefused(given);
    setTrying(false);
    setFailure(why);
    if (why === undefined) signIn(given);
  };

  return (
    <main class="sign-in">
      <form class="sign-in-card" onSubmit={(event) => void submit(event)} noValidate>
        <p class="brand"><span class="brand-mark" aria-hidden="true">T</span>Tidings <span class="soft">console</span></p>
        <h1>Sign in</h1>
        <Failure text={failure ?? note} />
        <TextField label="Your name" help="Written into the server's audit log with each change you make." value={operator} onInput={setOperator} isRequired />
        <TextField label="API key" type="password" help="Kept in this tab alone, until you close it or sign out." value={key} onInput={setKey} isRequired />
        {isInClear() && <p class="mistake">This page came without TLS: whoever is on the way can read the key.</p>}
        <button type="submit" class="primary" disabled={isTrying}>{isTrying ? "Trying…" : "Sign in"}</button>
      </form>
    </main>
  );
}
