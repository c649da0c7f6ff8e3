const TONES = 8;

function toneOf(id: string): number {
  let sum = 0;
  for (const character of id) sum = (sum * 31 + (character.codePointAt(0) ?? 0)) >>> 0;
  return sum % TONES;
}

function initialsOf(name: string): string {
  const words = name.trim().split(/\s+/u).slice(0, 2);
  // A letter with many marks on it is one letter here.
  return words.map((word) => [...word.normalize("NFD").replace(/\p{M}/gu, "")][0] ?? "").join("").toUpperCase();
}

/** Initials on a colour that stays the same; pictures of other hosts are not fetched. */
export function Avatar({ id, name, isOnline }: { readonly id: string; readonly name: string; readonly isOnline?: boolean }) {
  return (
    <span class={`avatar tone-${toneOf(id)}`} aria-hidden="true">
      {initialsOf(name)}
      {isOnline && <span class="online-dot" />}
    </span>
  );
}
