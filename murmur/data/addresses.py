"""Addresses of text: s3:// through pyarrow, since fsspec's own package for it pins another botocore than boto3 takes.

The usual variables say where and who: AWS_ENDPOINT_URL (or AWS_ENDPOINT_URL_S3), AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, or a profile in ~/.aws.
"""

import os
from typing import Any
from urllib.parse import urlsplit

import fsspec
from fsspec.implementations.arrow import ArrowFSWrapper


class S3(ArrowFSWrapper):  # type: ignore[misc]
    """Buckets of one server."""

    protocol = "s3"
    cachable = False

    def __init__(self, **options: Any) -> None:
        from pyarrow.fs import S3FileSystem

        endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        named = {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme} if endpoint.netloc else {}
        super().__init__(S3FileSystem(region=region, **named), **options)

    @classmethod
    def _parent(cls, path: str) -> str:
        """Of the class, as universal_pathlib asks for it; the wrapper's own is an instance's."""
        return path.rstrip("/").rpartition("/")[0]


def register() -> None:
    """Have fsspec open s3:// addresses so."""
    fsspec.register_implementation("s3", S3, clobber=True)
