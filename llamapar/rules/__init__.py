"""`lp.check`: rules, fixes, the report; `lp.loading` and what makes a layout fit."""
