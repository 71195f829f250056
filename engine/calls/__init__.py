"""How a call of an operator runs: its plan, what is recorded of it, and where its derivative finds its arguments."""
