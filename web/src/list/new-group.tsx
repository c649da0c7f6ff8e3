import { useState } from "preact/hooks";
import { Dialog } from "../parts/dialog.js";
import { useSession } from "../state/context.js";
import { reason } from "../state/toasts.js";
import { hashOf } from "../address.js";

export function NewGroup({ onClose }: { readonly onClose: () => void }) {
  const { tidings, people } = useSession();
  const [failure, setFailure] = useState<string>();
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const name = String(form.get("name") ?? "").trim();
    const members = form.getAll("member").map(String);
    try {
      const group = await tidings.createGroup({ ...(name !== "" && { name }), members });
      onClose();
      location.hash = hashOf(group.id);
    } catch (error) {
      setFailure(reason(error));
    }
  };
  return (
    <Dialog title="New group" onClose={onClose}>
      <form class="form" onSubmit={(event) => void submit(event)}>
        <label class="field">
          <span>Name</span>
          <input name="name" required maxLength={80} autoComplete="off" />
        </label>
        <fieldset class="field">
          <legend>Members</legend>
          {people.filter(({ id }) => id !== tidings.user).map(({ id, name }) => (
            <label key={id} class="tick"><input type="checkbox" name="member" value={id} defaultChecked /> <bdi>{name}</bdi></label>
          ))}
        </fieldset>
        {failure !== undefined && <p class="failure" role="alert">{failure}</p>}
        <button type="submit" class="primary">Make the group</button>
      </form>
    </Dialog>
  );
}
