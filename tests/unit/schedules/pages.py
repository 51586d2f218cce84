"""Reads the data of pages."""

import base64
import gzip
import json
import re
from typing import Any


def data_of(page: bytes) -> dict[str, Any]:
    """Returns the data of a page."""
    found = re.search(rb'id="data">([^<]*)<', page)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))
