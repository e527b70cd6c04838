// The data of a page: a stream of patches (see patches.py). It pauses while the page is hidden.

const CONFIRM_EVERY = 20000; // milliseconds

// Puts changed fields into a row or a head. Of a curve, only the points that are gone and the new ones are sent.
function merge(into, fields) {
  for (const [name, value] of Object.entries(fields)) {
    const before = into[name];
    into[name] = value?.add && before?.points ? { ...before, points: [...before.points.slice(value.drop), ...value.add] } : value;
  }
  return into;
}

export class Live {
  // `onChange(head, rows)` after each patch, `onState(state)` with live, paused, lost or missing.
  constructor(query, onChange, onState) {
    this.query = query;
    this.onChange = onChange;
    this.onState = onState;
    this.head = {};
    this.rows = new Map();
    this.source = null;
    this.onVisibility = () => (document.hidden ? this.pause() : this.connect());
    document.addEventListener("visibilitychange", this.onVisibility);
    this.onVisibility();
    this.confirming = setInterval(() => this.confirm(), CONFIRM_EVERY);
  }

  connect() {
    if (this.source) return;
    this.stream = null;
    this.source = new EventSource(`/events?${new URLSearchParams(this.query)}`);
    this.source.onmessage = (event) => this.apply(JSON.parse(event.data));
    this.source.onerror = () => {
      this.onState("lost");
      // A browser retries when the connection is lost, but not after a refusal: the session may have ended.
      if (this.source?.readyState === EventSource.CLOSED) {
        this.source = null;
        setTimeout(() => { if (!document.hidden && !this.closed) this.check(); }, 2000);
      }
    };
  }

  async check() {
    const response = await fetch("/events", { method: "HEAD" }).catch(() => null);
    if (response?.status === 401) location.reload();
    else if (!this.closed) this.connect();
  }

  // A page that does not confirm its stream makes room for others, if there are too many.
  confirm() {
    if (!this.source || !this.stream) return;
    fetch("/api/reading", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ stream: this.stream }) }).catch(() => null);
  }

  apply(patch) {
    if (patch.stream) {
      this.stream = patch.stream;
      this.confirm();
    }
    if (patch.missing) {
      this.onState("missing");
      return;
    }
    if (patch.reset) this.head = {};
    merge(this.head, patch.head);
    for (const [id, fields] of Object.entries(patch.rows)) {
      const row = patch.reset ? undefined : this.rows.get(id);
      this.rows.set(id, merge({ ...row, id }, fields));
    }
    if (patch.reset) {
      for (const id of this.rows.keys()) if (!(id in patch.rows)) this.rows.delete(id);
    }
    for (const id of patch.gone) this.rows.delete(id);
    this.onState("live");
    this.onChange(this.head, this.rows);
  }

  pause() {
    this.source?.close();
    this.source = null;
    this.onState("paused");
  }

  close() {
    this.closed = true;
    clearInterval(this.confirming);
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.source?.close();
    this.source = null;
  }
}
