// The service worker of the page: browsers subscribe with one alone.
self.addEventListener("push", () => undefined);
