"""How fast headrace reads, next to other clients, on one machine, from one topic: `python -m benchmarks --help`.

__main__     the command line
run          a broker, the datasets, rounds over the contenders
datasets     what is read, and how it gets into the broker
contenders   who reads, with which command line
process      a command with its output, its CPU time and its peak memory
child        what runs in a process of its own: `readers/`, `polling`, `latency`
results      medians, ratios, targets
report       Markdown
machine      what it ran on
"""
