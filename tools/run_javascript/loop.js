// The jobs of a program: timers, and calls of tools that have not ended.

// Taken before a program can replace them.
const { setTimeout: startTimer } = globalThis;
const now = () => performance.now();
// Some work of the engine takes several turns of its event loop; beyond this, nothing is left that could happen.
const MAX_IDLE_TURNS = 200;
const MICROTASKS_FIRST = 50;

export class Loop {
  #calls;
  #outstanding = new Map();
  #ignored = new Set();
  #timers = new Map();
  #lastTimer = 0;

  constructor(calls) {
    this.#calls = calls;
  }

  /** Forgets the timers that an earlier program of the session left, and its calls, which ended with it. */
  forgetAll() {
    this.#outstanding.clear();
    this.#ignored.clear();
    this.#timers.clear();
  }

  /** Starts a call, which runs from now on. Returns a promise of its outcome. */
  start(name, argumentsText) {
    const number = this.#calls.start(name, argumentsText);
    return new Promise((resolve) => this.#outstanding.set(number, resolve));
  }

  /** Remembers the failure of a call, unless the function that is returned is called: the program waits for the call. */
  watch(promise) {
    const watched = { error: null };
    this.#ignored.add(watched);
    const forget = () => this.#ignored.delete(watched);
    promise.then(forget, (error) => (watched.error = error));
    return forget;
  }

  addTimer(action, delay, repeats) {
    const number = ++this.#lastTimer;
    const period = Math.max(Number(delay) || 0, 0);
    this.#timers.set(number, { action, due: now() + period, period: repeats ? Math.max(period, 1) : null });
    return number;
  }

  removeTimer(number) {
    this.#timers.delete(number);
  }

  /** Waits for a promise, and meanwhile does the jobs that come up. An exception of a timer is one of the program. */
  async run(promise) {
    let end = null;
    promise.then(
      (value) => (end = { value }),
      (error) => (end = { error }),
    );
    for (let count = 0; count < MICROTASKS_FIRST && !end; count++) await null;
    for (let idle = 0; !end && idle < MAX_IDLE_TURNS; idle++) {
      // Not before everything else has run does the program wait for a call, as that stops all of it.
      await sleep(0);
      if (!end && (await this.#doNext())) idle = 0;
    }
    if (!end) throw new Error("the program waits for a promise that nothing can settle");
    if ("error" in end) throw end.error;
    return end.value;
  }

  /** True if there are calls that the program does not wait for, or that failed so. */
  hasIgnoredCalls() {
    return this.#outstanding.size > 0 || this.#ignored.size > 0;
  }

  /** Waits for the calls that the program started and did not wait for. Throws the error of the first that failed. */
  async finishCalls() {
    while (this.#outstanding.size > 0) {
      this.#finishOne();
      // What the program does with the outcome may start other calls.
      await sleep(0);
    }
    for (const { error } of this.#ignored) {
      if (error) throw error;
    }
  }

  /** Does one job. Returns false if there was none. */
  async #doNext() {
    const timer = this.#nextTimer();
    if (timer && timer.due <= now()) {
      this.#fire(timer);
    } else if (this.#outstanding.size > 0) {
      this.#finishOne();
    } else if (timer) {
      await sleep(timer.due - now());
    } else {
      return false;
    }
    return true;
  }

  #nextTimer() {
    let next = null;
    for (const [number, timer] of this.#timers) {
      if (!next || timer.due < next.due) next = { number, ...timer };
    }
    return next;
  }

  #fire({ number, action, period }) {
    if (period === null) this.#timers.delete(number);
    else this.#timers.get(number).due = now() + period;
    action();
  }

  #finishOne() {
    const { call, outcome } = this.#calls.wait(Uint32Array.from(this.#outstanding.keys()));
    const resolve = this.#outstanding.get(call);
    this.#outstanding.delete(call);
    resolve(outcome);
  }
}

function sleep(milliseconds) {
  return new Promise((resolve) => startTimer(resolve, milliseconds));
}
