"""The key of a server: it comes from the environment, and is never stored or printed."""

from __future__ import annotations

import json
import os
from urllib.parse import quote

from stridebench.harness.errors import UsageError

HIDDEN = "(key)"
KEY_ENV = "STRIDE_API_KEY"
"""The variable that holds a key where no other is named."""


class Key:
    """The value of an environment variable.

    Args:
        variable: its name; it need not be set.

    Raises:
        UsageError: it holds what no header can carry.
    """

    def __init__(self, variable: str) -> None:
        self._value = os.environ.get(variable, "").strip()
        if not (self._value.isascii() and self._value.isprintable()):
            raise UsageError(f"${variable} is no key: it holds characters that a header cannot carry")

    @property
    def headers(self) -> dict[str, str]:
        """What a request carries; empty where there is no key."""
        return {"Authorization": f"Bearer {self._value}"} if self._value else {}

    def hidden(self, text: str) -> str:
        """A text of the server or of the client, without the key as it is or as JSON, Python or an address write it."""
        if not self._value:
            return text
        forms = {self._value, json.dumps(self._value)[1:-1], repr(self._value)[1:-1], quote(self._value, safe="")}
        for form in sorted(forms, key=len, reverse=True):
            text = text.replace(form, HIDDEN)
        return text
