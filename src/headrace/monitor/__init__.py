"""The observation of a cluster from outside: what `headrace lag`, its exporter and `headrace ui` show.

`model.py` is what was seen, as data. `collector.py` asks the brokers, one pass for all groups; `lag.py` and `ages.py`
decide what the offsets mean; `history.py` remembers; `watcher.py` repeats the pass, also after an outage of the
cluster.
"""
