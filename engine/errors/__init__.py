"""What users are told when something is wrong: where their code called, what a name that is missing is replaced by."""
