"""The processes that run a program together: how they meet, send and notice that one is gone."""
