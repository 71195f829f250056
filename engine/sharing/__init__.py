"""Work that the threads of this process share: how many they are, and how they wait for one another."""
