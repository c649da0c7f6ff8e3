// What the README's app imports of React Native: components that a renderer without a screen shows by their names, and the state of the app.
export const [Button, Text, TextInput, View] = ["Button", "Text", "TextInput", "View"];

const listeners = new Set();

export const AppState = {
  currentState: "active",
  addEventListener(name, listener) {
    if (name !== "change") throw new Error(`the app listens for ${name}`);
    listeners.add(listener);
    return { remove: () => listeners.delete(listener) };
  },
};

/** As the system does. */
export function becomes(state) {
  AppState.currentState = state;
  for (const listener of listeners) listener(state);
}
