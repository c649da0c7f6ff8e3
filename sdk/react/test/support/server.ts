// The real server, as the client's own tests start it.
type Support = typeof import("../../../typescript/dist/test/support/real-server.js");

const compiled = new URL("../../../../typescript/dist/test/support/real-server.js", import.meta.url);
export const { RealServer } = (await import(compiled.href)) as Support;
export type Server = InstanceType<Support["RealServer"]>;
