"""What the passes share: attributes, marks, functions, outlining, source locations."""
