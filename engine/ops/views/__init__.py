"""Other shapes and strides on the same memory, and the history of views."""
