"""Pure records and their two forms: tables as text and as HTML, and what a run did."""
