"""What operators call: overrides, a cycle at once, the state. Every change starts a cycle and none waits for it."""
