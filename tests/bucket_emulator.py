"""Cloud Storage on this machine: gcp-storage-emulator, and what it lacks.

TensorStore writes an object on the condition that it is of the generation that
was read, so that no write of another is lost. The emulator knows neither.
"""

from collections.abc import Iterator
import contextlib
from http import HTTPStatus
import http.server
import socket
from typing import Any

import pytest

# It would ask the real service what kind of bucket this is.
SETTINGS = dict(GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false")


@contextlib.contextmanager
def serving(bucket: str) -> Iterator[tuple[dict[str, str], Any]]:
  """Yields an environment in which gs://bucket is here, and its files.

  Skips the test without the extra `emulator`.
  """
  with pytest.MonkeyPatch.context() as patch:
    for name, value in SETTINGS.items():
      patch.setenv(name, value)
    gcsfs = pytest.importorskip("gcsfs", reason="pip install '.[emulator]'")
    server = pytest.importorskip("gcp_storage_emulator.server")
    _teach_generations(patch, server)
    # One at a time is served; the others must be let wait.
    patch.setattr(http.server.HTTPServer, "request_queue_size", 128)
    with socket.socket() as s:
      s.bind(("localhost", 0))
      port = s.getsockname()[1]
    address = dict(host="localhost", port=port, default_bucket=bucket)
    with server.create_server(**address, in_memory=True):
      url = f"http://localhost:{port}"
      files = gcsfs.GCSFileSystem(
        token="anon", endpoint_url=url, use_listings_cache=False
      )
      urls = dict(STORAGE_EMULATOR_HOST=url, TENSORSTORE_GCS_HTTP_URL=url)
      yield SETTINGS | urls, files


def _teach_generations(patch: pytest.MonkeyPatch, server: Any) -> None:
  objects = server.objects
  download, insert = objects.download, objects.insert

  def generation(request, storage, name):
    try:
      stored = storage.get_file_obj(request.params["bucket_name"], name)
    except objects.NotFound:
      return "0"
    return stored["generation"]

  def read(request, response, storage, *_, **__):
    now = generation(request, storage, request.params["object_id"])
    if request.query.get("ifGenerationNotMatch") == [now]:
      response.status = HTTPStatus.NOT_MODIFIED
    elif request.query.get("ifGenerationMatch", [now]) != [now]:
      response.status = HTTPStatus.PRECONDITION_FAILED
    else:
      response["x-goog-generation"] = now
      download(request, response, storage)

  def write(request, response, storage, *_, **__):
    wanted = request.query.get("ifGenerationMatch")
    name = request.query.get("name", [""])[0]
    if wanted and wanted != [generation(request, storage, name)]:
      response.status = HTTPStatus.PRECONDITION_FAILED
    else:
      insert(request, response, storage)

  taught = {download: read, insert: write}
  patch.setattr(objects, "download", read)
  patch.setattr(objects, "insert", write)
  patch.setattr(
    server,
    "HANDLERS",
    [
      (path, {k: taught.get(v, v) for k, v in methods.items()})
      for path, methods in server.HANDLERS
    ],
  )
