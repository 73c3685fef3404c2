"""The edit that repairs a failing cell, function or script: tried in place, and compared with one process.

`repair` says what was found; `attempts` has the order of trials; `program` is what failed and how it goes on,
`failure` its facts; `degrees` are the numbers of ranks in reach; `candidates` makes the edits and `editing`
puts them in; `child` runs one without an effect outside; `trial` tries an edit; `proof` compares ranks with
one process.
"""

SECONDS = 3.0
"""Seconds for all trials of a failure."""
