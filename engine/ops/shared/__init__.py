"""What families of operators share."""
