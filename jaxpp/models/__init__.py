"""Parts of models: slices of a sequence, a vocabulary spread over stages, the order of stacked layers."""

from jaxpp.models.attention import slice_attention
from jaxpp.models.looking_ahead import check_slices
from jaxpp.models.slices import scan_slices
from jaxpp.models.vocabulary import vocabulary_cross_entropy, vocabulary_embedding
from jaxpp.schedules.layers import rows_of_layers, stored_rows

__all__ = [
    "check_slices",
    "rows_of_layers",
    "scan_slices",
    "slice_attention",
    "stored_rows",
    "vocabulary_cross_entropy",
    "vocabulary_embedding",
]
