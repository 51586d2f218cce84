"""Parts of models that pipelines need: slices of a sequence, attention over them, a vocabulary spread over stages."""
