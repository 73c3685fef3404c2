"""`lp.check` and `lp.loading`: the rules, the report, and the search for fixes that pass the rules."""
