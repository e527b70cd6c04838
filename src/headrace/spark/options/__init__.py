"""The options of `format("headrace")`: their names, their values, and which can be combined.

Imports nothing of the other packages of `headrace.spark`. An invalid option is an OptionError when the query starts.
"""
