"""Running programs: engines, results, tapes, and the runs that `lp.watch` compares."""
