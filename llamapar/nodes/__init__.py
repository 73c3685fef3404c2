"""A model's file spread over machines that serve it: `loading`, and its picture."""
