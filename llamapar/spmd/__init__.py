"""Executing layouts with torch: the engines, the collectives and the sharded programs."""
