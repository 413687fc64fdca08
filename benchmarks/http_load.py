"""Clients of a scoring server, and a plain server to compare with.

Both run in processes of their own. The plain server is what many write first:
FastAPI before a model of transformers that scores one request at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import concurrent.futures
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import queue
import threading
import time
from typing import Any, NamedTuple
import urllib.parse

import numpy as np
import peer

from prm_jax import errors
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib

ROUTE = "/v1/prm/score"
JSON = {"Content-Type": "application/json"}
SPAWN = multiprocessing.get_context("spawn")


class Asked(NamedTuple):
  """What some clients did.

  Args:
    seconds: From the first request to the last reply.
    latencies: Seconds from each request to its reply.
    scores: The step scores of each request's items.
  """

  seconds: float
  latencies: list[float]
  scores: list[list[list[float]]]


@contextlib.contextmanager
def clients() -> Iterator[concurrent.futures.Executor]:
  """Yields a process for clients, which take none of the server's time."""
  with concurrent.futures.ProcessPoolExecutor(1, SPAWN) as process:
    yield process


def ask(url: str, bodies: Sequence[str], num: int) -> Asked:
  """Sends requests by so many clients; each has one under way at a time.

  Args:
    url: The server's address.
    bodies: The bodies.
    num: The number of clients.

  Raises:
    RuntimeError: A request got no scores.
  """
  todo: queue.SimpleQueue[int] = queue.SimpleQueue()
  for i in range(len(bodies)):
    todo.put(i)
  latencies, replies = [0.0] * len(bodies), [b""] * len(bodies)
  address = urllib.parse.urlsplit(url)

  def work() -> None:
    connection = http.client.HTTPConnection(
      str(address.hostname), address.port, timeout=600
    )
    with contextlib.closing(connection), contextlib.suppress(queue.Empty):
      while True:
        i = todo.get_nowait()
        began = time.perf_counter()
        connection.request("POST", ROUTE, bodies[i], JSON)
        reply = connection.getresponse()
        replies[i] = reply.read()
        latencies[i] = time.perf_counter() - began
        if reply.status != 200:
          raise RuntimeError(f"status {reply.status}: {replies[i][:200]!r}")

  began = time.perf_counter()
  with concurrent.futures.ThreadPoolExecutor(num) as pool:
    for done in [pool.submit(work) for _ in range(num)]:
      done.result()
  seconds = time.perf_counter() - began
  scores = [
    [entry["step_scores"] for entry in json.loads(reply)["data"]]
    for reply in replies
  ]
  return Asked(seconds, latencies, scores)


@contextlib.contextmanager
def plain_server(folder: pathlib.Path) -> Iterator[str]:
  """Yields the address of a server that scores one request at a time.

  Args:
    folder: The folder of peer.make.

  Raises:
    InputError: fastapi or uvicorn isn't installed.
    RuntimeError: The server ended before it listened.
  """
  try:
    import fastapi
    import uvicorn
  except ImportError as e:
    raise errors.InputError(
      f"{e.name} isn't installed; {errors.to_install('bench')}"
    ) from None
  del fastapi, uvicorn
  reader, writer = SPAWN.Pipe(duplex=False)
  process = SPAWN.Process(
    target=_serve_plainly, args=(folder, writer), daemon=True
  )
  process.start()
  writer.close()  # so that recv ends if the server does
  try:
    try:
      port = reader.recv()
    except EOFError:
      raise RuntimeError("the plain server ended before it listened") from None
    yield f"http://127.0.0.1:{port}"
  finally:
    process.terminate()
    process.join()


def _serve_plainly(folder: pathlib.Path, writer: Any) -> None:
  """Serves until it is terminated; sends its port once it listens."""
  import socket

  import fastapi
  import transformers
  import uvicorn

  torch = peer.torch()
  torch.set_num_threads(os.cpu_count() or 1)
  text = (folder / "tokenizer.json").read_text()
  tokenizer = tokenizer_lib.HuggingFace(text, eos=peer.END)
  config = encoding.with_template(
    encoding.EncodingConfig(max_tokens=1 << 30, template=peer.DIALECT),
    tokenizer,
  )
  model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
  model = model.eval()
  app, one_at_a_time = fastapi.FastAPI(), threading.Lock()

  def score(problem: str, steps: Sequence[str]) -> list[float]:
    encoded = encoding.encode(problem, steps, tokenizer, config)
    assert encoded is not None
    ids = torch.as_tensor(np.asarray(encoded.tokens)[None].astype(np.int64))
    with torch.inference_mode():
      scores = model(ids).logits.softmax(-1)[0, :, 1].numpy()
    return scores[encoded.step_end].tolist()

  # Not async: FastAPI then calls it in a thread.
  @app.post(ROUTE)
  def reply(body: dict = fastapi.Body()) -> dict:
    with one_at_a_time:
      return dict(
        data=[
          dict(step_scores=score(item["problem"], item["steps"]))
          for item in body["items"]
        ]
      )

  with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
    writer.send(listening.getsockname()[1])
    config_ = uvicorn.Config(app, log_level="error", access_log=False)
    uvicorn.Server(config_).run(sockets=[listening])
