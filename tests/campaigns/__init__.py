"""Programs that attack: each can be run by itself at any size, and a sample of each runs with the tests."""
