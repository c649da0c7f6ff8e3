// One observable, one component.
import type { Observable } from "@tidings/client";
import { useSyncExternalStore } from "react";

/** What an observable of the client holds now; the component is rendered again when that changes. */
export function useObservable<T>(observable: Observable<T>): T {
  return useSyncExternalStore(observable.subscribe, observable.get, observable.get);
}

/**
 * A part of what an observable holds, for components that need no more: they are rendered again only when the part changes. `select`
 * answers a plain value, or an object that keeps its identity.
 */
export function useSelected<T, Part>(observable: Observable<T>, select: (value: T) => Part): Part {
  const get = (): Part => select(observable.get());
  return useSyncExternalStore(observable.subscribe, get, get);
}
