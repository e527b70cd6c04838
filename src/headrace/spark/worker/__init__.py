"""What runs in Spark's Python workers: a task reads one range of offsets as Arrow batches.

Imports neither the driver's side nor the group's: modules that tasks share with the driver are in `headrace.spark`
itself (`offset_range`, `schema`, `data_loss`).
"""
