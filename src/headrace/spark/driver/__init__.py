"""The driver's side of a query: which offsets a batch reads, and the tasks that read them.

`batch.py` and `stream.py` are the readers that Spark calls; `checkpoint`, `lanes`, `ranges` and `tasks` decide without
I/O; `offset_lookup` asks the brokers.
"""
