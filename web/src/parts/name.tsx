import { useName } from "../state/context.js";

/** A user's name. Its direction stays within it. */
export function Name({ user }: { readonly user: string }) {
  return <bdi>{useName(user)}</bdi>;
}
