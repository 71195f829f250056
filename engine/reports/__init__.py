"""What a program does, told to its user: the calls (`trace`) and the copies that another layout would save."""
