// The data of a page: a stream of patches (see patches.py). It pauses while the page is hidden.

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
  }

  connect() {
    if (this.source) return;
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

  apply(patch) {
    if (patch.missing) {
      this.onState("missing");
      return;
    }
    if (patch.reset) this.head = {};
    Object.assign(this.head, patch.head);
    for (const [id, fields] of Object.entries(patch.rows)) {
      const row = patch.reset ? undefined : this.rows.get(id);
      this.rows.set(id, { ...row, ...fields, id });
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
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.source?.close();
    this.source = null;
  }
}
