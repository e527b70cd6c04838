"""Benchmarks of headrace and other clients on one machine: `python -m benchmarks --help`.

__main__     the command line
plan         records and rounds of each part
run          a broker, the datasets, rounds over the contenders
datasets     the topics that are read, and how they are written
contenders   the readers and their command lines
franz_go     builds the reader in Go (`go/`)
process      a command with its output, its CPU time and its peak memory
counters     its instructions, from perf
pinning      the broker on cores of its own
child        entry point of child processes: `readers/`, `writers/`, and the smaller measurements
polling      the cost of a poll
latency      from `produce()` to `poll()`
arrivals     the age of records at a consumer that works between polls
consumption  headrace in a group compared with `assign()`
joining      from `subscribe()` to the first record
rebalancing  the duration of rebalances
groups       runs the last three
filling      small topics for them
results      medians, ratios, targets
report       Markdown
group_report the part about groups
spark        the Spark source compared with Spark's own: runs spark_session in the environment of spark_peer
scaling      the cost of 1 to 10,000 partitions; scaling_report
tls          reading over TLS
formats      typed columns
writing      producers: rounds over the writers of write_contenders, topics by write_topics, write_latency
write_results, write_report  rows, targets and Markdown of producers
spark_writing the Spark sink compared with Spark's own: spark_write_session, spark_write_report
process_stats figures of running processes from the kernel
machine      facts about the machine
"""
