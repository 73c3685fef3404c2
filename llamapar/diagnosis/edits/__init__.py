"""The edit that repairs a failing cell, function or script: tried in place, and compared with one process.

`search` has the order of trials; `program` is what failed and how it goes on; `degrees` are the numbers of
ranks in reach; `candidates` makes the edits; `child` runs one without an effect outside; `trial` tries an
edit; `proof` compares ranks with one process; `words` says what was found.
"""
