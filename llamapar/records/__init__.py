"""Pure records, each with a text form and an HTML form: tables, equations, traces and memory curves."""
