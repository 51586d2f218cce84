"""What other tools read and write: PyTorch's tables (`csv`), traces for Perfetto (`chrome_trace`), pictures."""
