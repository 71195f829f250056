"""Layers of LSTM, GRU and Elman networks."""
