"""`lp.run`: a program on the ranks of a layout, by one of the engines, and what came of it."""
