"""The sink, `df.write.format("headrace")` and `writeStream`: the tasks that write, and the work of the driver.

`protocol.py` decides about exactly-once writes, without I/O. Imports nothing of the source but the pickling and the
tuning of workers.
"""

from ... import _protocol as _protocol  # before kio is imported elsewhere: it loads kio without hypothesis
