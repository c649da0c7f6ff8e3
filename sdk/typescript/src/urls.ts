import { ownAddress } from "./platform.js";

// React Native's `URL` knows neither `ws:` nor, in older versions, the host: an address of a server is taken apart here.
const ADDRESS = /^(https?|wss?):\/\/(?:[^/?#@]*@)?([^/?#@]+)([^?#]*)/i;

/** Both listeners of a server, from whichever address an app has. In a page it may be relative to the page's. */
export function listenersOf(url: string): { readonly http: string; readonly socket: string } {
  const [, protocol, host, path] = ADDRESS.exec(url) ?? ADDRESS.exec(absolute(url)) ?? [];
  if (protocol === undefined || host === undefined || path === undefined) throw notAnAddress(url);
  const isSecure = /^(https|wss)$/i.test(protocol);
  const prefix = path.replace(/\/(v1\/connect)?\/?$/, "");
  return {
    http: `${isSecure ? "https" : "http"}://${host}${prefix}`,
    socket: `${isSecure ? "wss" : "ws"}://${host}${prefix}/v1/connect`,
  };
}

function absolute(url: string): string {
  const base = ownAddress();
  if (base === undefined) throw notAnAddress(url);
  return new URL(url, base).href;
}

const notAnAddress = (url: string): TypeError => new TypeError(`\`url\` is no address of a server, such as https://chat.example.com: ${url}`);
