/** Time since its creation. It counts while the computer sleeps, and when somebody sets the computer's clock back. */
export class Stopwatch {
  constructor(startedMs = 0) {
    this.wall = Date.now() - startedMs;
    this.monotonic = performance.now() - startedMs;
  }

  /** Milliseconds. */
  get elapsed() {
    return Math.max(Date.now() - this.wall, performance.now() - this.monotonic);
  }
}
