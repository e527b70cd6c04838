"""How fast headrace reads and writes, next to other clients, on one machine: `python -m benchmarks --help`.

__main__     the command line
run          a broker, the datasets, rounds over the contenders
datasets     what is read, and how it gets into the broker
contenders   who reads, with which command line
process      a command with its output, its CPU time and its peak memory
child        what runs in a process of its own: `readers/`, `writers/`, and the smaller measurements
polling      what a poll costs
latency      from `produce()` to `poll()`
consumption  headrace in a group beside headrace with `assign()`
joining      from `subscribe()` to the first record
rebalancing  until a group is at rest again
groups       runs the last three
filling      small topics for them
results      medians, ratios, targets
report       Markdown
group_report the part of it about groups
spark        the Spark source beside Spark's own: what spark_session does in the environment of spark_peer
tls          reading over TLS
writing      producers: rounds over the writers of write_contenders, topics by write_topics, write_latency
write_results, write_report  their rows, targets, and Markdown
spark_writing the Spark sink beside Spark's own: spark_write_session, spark_write_report
process_stats what the kernel says of running processes
machine      what it ran on
"""
