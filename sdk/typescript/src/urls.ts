/** Both doors of a server, from whichever address an app has. */
export function doorsOf(url: string): { readonly http: string; readonly socket: string } {
  const { protocol, host, pathname } = new URL(url, typeof location === "undefined" ? undefined : location.href);
  const isSecure = protocol === "https:" || protocol === "wss:";
  const prefix = pathname.replace(/\/(v1\/connect)?\/?$/, "");
  return {
    http: `${isSecure ? "https" : "http"}://${host}${prefix}`,
    socket: `${isSecure ? "wss" : "ws"}://${host}${prefix}/v1/connect`,
  };
}
