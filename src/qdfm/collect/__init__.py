"""How data is made: heuristic behaviours and trained collectors. Not algorithms."""
