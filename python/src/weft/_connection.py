"""How to reach a server."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any

from . import _weft
from ._errors import InvalidArgumentError

if TYPE_CHECKING:
    from ._servers import Origin, Store


def connect(server: str | Store | Origin, key: str | None, ca_file: str | os.PathLike[str] | None, timeout: float) -> Any:
    """A client of a URL, or of a store or origin in this process."""
    if not isinstance(server, str):
        url = getattr(server, "url", None)
        if not isinstance(url, str):
            raise InvalidArgumentError(f"a {type(server).__name__} is no server: pass a URL or a weft.Store")
        key = key or getattr(server, "_admin_key", None)
        server = url
    if ca_file is None and server.startswith("https://") and "SSL_CERT_FILE" not in os.environ:
        # OpenSSL's own default is a path of the machine that it was built for.
        ca_file = ssl.get_default_verify_paths().cafile
    return _weft.Client(server, key, None if ca_file is None else os.fspath(ca_file), idle_timeout=timeout)
