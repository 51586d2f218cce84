"""Formats of other tools: PyTorch's tables (`csv`), traces for Perfetto (`chrome_trace`), and pictures."""
