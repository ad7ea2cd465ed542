/** Time since its creation. It counts while the computer sleeps, and after its clock is set back. */
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
