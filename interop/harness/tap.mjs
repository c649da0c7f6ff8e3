// Test Anything Protocol 13, as far as suites need it.

// What hangs is told as a failed case, not as a suite that never ends.
const CASE_MS_MAX = 120_000;

export async function run(client, cases) {
  console.log(`TAP version 13\n# client: ${client}`);
  let count = 0;
  let failures = 0;
  for (const [title, check] of cases) {
    count += 1;
    let timer;
    const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("not in time")), CASE_MS_MAX)));
    try {
      await Promise.race([check(), late]);
      console.log(`ok ${count} - ${title}`);
    } catch (error) {
      failures += 1;
      console.log(`not ok ${count} - ${title}\n${String(error?.stack ?? error).replace(/^/gm, "# ")}`);
    } finally {
      clearTimeout(timer);
    }
  }
  console.log(`1..${count}`);
  return failures ? 1 : 0;
}
