"""The driver's side of a query: which offsets a batch reads, and the tasks that read them.

`batch.py` and `stream.py` are the readers that Spark calls; `batch_plan`, `lanes`, `ranges` and `tasks` decide without
I/O. Modules that the group's side also needs are in `headrace.spark` itself: `checkpoint`, and `offset_lookup`, which
asks the brokers.
"""
